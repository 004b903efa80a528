# Evaluate the best model of the run on test data.
!systole evaluate "{OUT}" --device {DEVICE}
