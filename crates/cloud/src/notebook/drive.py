# The run's folder in your Drive: the next session resumes from it.
try:
    from google.colab import drive

    drive.mount(DRIVE)
    OUT = DRIVE + '/MyDrive/systole/@NAME@'
except ImportError:
    print('This is not Colab.')
    OUT = '@NAME@'
print('Run folder:', os.path.abspath(OUT))
