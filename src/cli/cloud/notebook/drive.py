# The run's folder, in your Drive: what a session leaves the next one goes on with.
from google.colab import drive

drive.mount('/content/drive')
OUT = '/content/drive/MyDrive/systole/@NAME@'
