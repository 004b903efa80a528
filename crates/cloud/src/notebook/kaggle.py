# The run's folder in the notebook's output. To resume in another session, add this notebook's output as input first.
OUT = KAGGLE + '/working/@NAME@' if os.path.isdir(KAGGLE) else '@NAME@'
earlier = sorted(glob.glob(KAGGLE + '/input/**/@NAME@/run.json', recursive=True))
if earlier and not os.path.isdir(OUT):
    shutil.copytree(os.path.dirname(earlier[-1]), OUT)
    print('Resuming from', os.path.dirname(earlier[-1]))
print('Run folder:', os.path.abspath(OUT))
