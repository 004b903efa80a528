# Train; run this cell again to resume after an interruption. TERM=dumb avoids progress lines that a notebook cannot redraw.
!TERM=dumb systole train {MODEL} --device {DEVICE} --out "{OUT}" {ARGUMENTS} --json > result.json
assert _exit_code == 0, 'training failed: see the error above'
