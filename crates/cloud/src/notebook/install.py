# Install the program from SOURCE, or from a wheel beside the notebook or in a Kaggle input.
import glob, os, shutil, subprocess, sys, tarfile, urllib.request

if not SOURCE:
    found = sorted(glob.glob('systole_jax-*.whl') + glob.glob('/kaggle/input/**/systole_jax-*.whl', recursive=True))
    assert found, 'set SOURCE in the cell above, or put the wheel beside the notebook, and run this cell again'
    SOURCE = found[-1]
if SOURCE.startswith(('http://', 'https://')):
    SOURCE, _ = urllib.request.urlretrieve(SOURCE, os.path.basename(SOURCE.split('?')[0]))
if SOURCE.endswith('.whl'):
    subprocess.run([sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', SOURCE], check=True)
else:
    with tarfile.open(SOURCE) as archive:
        program = next(m for m in archive if m.isfile() and os.path.basename(m.name) == 'systole')
        os.makedirs('bin', exist_ok=True)
        with open('bin/systole', 'wb') as out:
            shutil.copyfileobj(archive.extractfile(program), out)
    os.chmod('bin/systole', 0o755)
    os.environ['PATH'] = os.path.abspath('bin') + os.pathsep + os.environ['PATH']
print(subprocess.run(['systole', '--version'], capture_output=True, text=True, check=True).stdout)
