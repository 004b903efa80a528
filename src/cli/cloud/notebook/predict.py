# What the model says of a picture: one of its test data, which training leaves in the folder; put your own here.
import glob

pictures = sorted(glob.glob(OUT + '/*-example.png'))
MODEL = result['model_file']
if pictures:
    from IPython.display import Image, display

    display(Image(pictures[0], width=140))
    !systole predict "{MODEL}" "{pictures[0]}"
else:
    print('this model is not one of pictures: systole predict takes rows and sentences, too')
