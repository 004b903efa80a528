# The best model of the run, measured on test data.
!systole evaluate "{OUT}" --device {DEVICE}
