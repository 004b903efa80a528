# Interrupted, the same cell goes on where the run was. A notebook keeps each line that a terminal would draw over: TERM says so.
!TERM=dumb systole train {MODEL} --device {DEVICE} --out "{OUT}" {ARGUMENTS} --json > result.json
assert _exit_code == 0, 'training ended with an error: it is above'
