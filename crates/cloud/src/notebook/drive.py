# The run's folder, in your Drive: what a session leaves the next one goes on with.
try:
    from google.colab import drive

    drive.mount(DRIVE)
    OUT = DRIVE + '/MyDrive/systole/@NAME@'
except ImportError:
    print('This is not Colab.')
    OUT = '@NAME@'
print('The run is kept in', os.path.abspath(OUT))
