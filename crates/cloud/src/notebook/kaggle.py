# The run's folder, in the notebook's output. To go on in another session, add this notebook's output as input first.
OUT = KAGGLE + '/working/@NAME@' if os.path.isdir(KAGGLE) else '@NAME@'
earlier = sorted(glob.glob(KAGGLE + '/input/**/@NAME@/run.json', recursive=True))
if earlier and not os.path.isdir(OUT):
    shutil.copytree(os.path.dirname(earlier[-1]), OUT)
    print('It goes on with', os.path.dirname(earlier[-1]))
print('The run is kept in', os.path.abspath(OUT))
