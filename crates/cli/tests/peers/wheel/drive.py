"""Stands for Colab's module: the Drive is a folder."""

import os


def mount(path):
    os.makedirs(path + "/MyDrive")
    print("Mounted at", path)
