# What this machine has, and the compiler for it.
import json

found = json.loads(subprocess.run(['systole', '--json', 'devices'], capture_output=True, text=True, check=True).stdout)
there = {one['platform'] for one in found if one['devices']}
if 'tpu' in there:
    !systole setup tpu
elif 'cuda' in there:
    !systole setup cuda
else:
    print('No TPU and no GPU is here: the processor does the work. Another machine: @HOW@.')
!systole devices
!systole doctor
