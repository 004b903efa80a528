# Files of the run: the models, its report (report.html) and the backups for the next session.
for name in sorted(os.listdir(OUT)):
    print(f'{os.path.getsize(os.path.join(OUT, name)):>12,}', os.path.join(OUT, name))
