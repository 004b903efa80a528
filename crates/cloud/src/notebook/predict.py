# Predict the class of an image: a test sample that training saved in the run's folder; replace it by your own.
from IPython.display import Image, display

pictures = sorted(glob.glob(OUT + '/*-example.png'))
TRAINED = result['model_file']
if pictures:
    display(Image(pictures[0], width=140))
    !systole predict "{TRAINED}" "{pictures[0]}" --device {DEVICE}
else:
    print('this model does not take images; systole predict also takes table rows and sentences')
