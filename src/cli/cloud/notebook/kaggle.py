# The run's folder, in the notebook's output. To go on in another session, add this notebook's output as input first.
import glob, shutil

OUT = '/kaggle/working/@NAME@'
earlier = sorted(glob.glob('/kaggle/input/**/@NAME@/run.json', recursive=True))
if earlier and not glob.glob(OUT):
    shutil.copytree(earlier[-1].removesuffix('/run.json'), OUT)
