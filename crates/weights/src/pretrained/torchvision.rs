//! Table of torchvision's pretrained image classifiers.

use super::entry::{PixelScaling, PretrainedEntry};
use crate::folder_settings::ResizeTarget;
use systole_datasets::{FileDigest, RemoteFile};

/// Address, digits and sizes are those of the classes `…_Weights`; `_file_size` there is rounded, so it is not a size in
/// bytes. A name without weights has those of `DEFAULT`, which come first.
const fn entry(
    name: &'static str,
    revision: &'static str,
    file: &'static str,
    digests: &'static [FileDigest<'static>],
    resize: usize,
    application: Option<&'static str>,
) -> PretrainedEntry {
    PretrainedEntry {
        publisher: "torchvision",
        name,
        revision,
        source: "https://download.pytorch.org/models/",
        file: RemoteFile { file, size: None, digests },
        last_tried: None,
        digests_from: "torchvision 0.29.2, torchvision/models/resnet.py and vgg.py",
        license: "none stated for the weights, which may have terms of the dataset, ImageNet; torchvision is BSD-3-Clause",
        application,
        pixels: PixelScaling::ImageNet,
        resize: ResizeTarget::ShortestEdge(resize),
        side: 224,
    }
}

macro_rules! entries {
    ($($name:literal $revision:ident $digits:literal $resize:literal $(= $application:literal)?;)*) => {
        pub(super) const ENTRIES: &[PretrainedEntry] = &[$(entry(
            $name,
            stringify!($revision),
            concat!($name, "-", $digits, ".pth"),
            &[FileDigest::Sha256Prefix($digits)],
            $resize,
            entries!(@ $($application)?),
        )),*];
    };
    (@) => { None };
    (@ $application:literal) => { Some($application) };
}

// Name, weights, first digits of the SHA-256, shorter side to which images are resized, Systole's application.
entries! {
    "resnet18" IMAGENET1K_V1 "f37072fd" 256;
    "resnet34" IMAGENET1K_V1 "b627a593" 256;
    "resnet50" IMAGENET1K_V2 "11ad3fa6" 232;
    "resnet50" IMAGENET1K_V1 "0676ba61" 256;
    "resnet101" IMAGENET1K_V2 "cd907fc2" 232;
    "resnet101" IMAGENET1K_V1 "63fe2227" 256;
    "resnet152" IMAGENET1K_V2 "f82ba261" 232;
    "resnet152" IMAGENET1K_V1 "394f9c45" 256;
    "wide_resnet50_2" IMAGENET1K_V2 "9ba9bcbe" 232;
    "wide_resnet50_2" IMAGENET1K_V1 "95faca4d" 256;
    "wide_resnet101_2" IMAGENET1K_V2 "d733dc28" 232;
    "wide_resnet101_2" IMAGENET1K_V1 "32ee1156" 256;
    "vgg16" IMAGENET1K_V1 "397923af" 256 = "vgg16";
    "vgg19" IMAGENET1K_V1 "dcbb9e9d" 256 = "vgg19";
}
