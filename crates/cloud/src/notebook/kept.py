# What is kept: the models, the run's page (report.html), and what the next session goes on from.
for name in sorted(os.listdir(OUT)):
    print(f'{os.path.getsize(os.path.join(OUT, name)):>12,}', os.path.join(OUT, name))
