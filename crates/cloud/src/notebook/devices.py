# The devices of this machine, and the compiler plugin for them.
import json

found = json.loads(subprocess.run(['systole', '--json', 'devices'], capture_output=True, text=True, check=True).stdout)
there = {one['platform'] for one in found if one['devices']}
if 'tpu' in there:
    !systole setup tpu  # needs a TPU
elif 'cuda' in there:
    !systole setup cuda  # needs a GPU
else:
    print('No TPU or GPU found: using the CPU. To select another machine: @HOW@.')
!systole devices
!systole doctor
