# What the model says of a picture: one of its test data, which training leaves in the folder; put your own here.
from IPython.display import Image, display

pictures = sorted(glob.glob(OUT + '/*-example.png'))
TRAINED = result['model_file']
if pictures:
    display(Image(pictures[0], width=140))
    !systole predict "{TRAINED}" "{pictures[0]}" --device {DEVICE}
else:
    print('this model is not one of pictures: systole predict takes rows and sentences, too')
