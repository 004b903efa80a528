//! Table of the pretrained image classifiers of `keras.applications`.

use super::entry::{PixelScaling, PretrainedEntry};
use crate::folder_settings::ResizeTarget;
use FileDigest::{Md5, Sha256};
use systole_datasets::{FileDigest, RemoteFile};

macro_rules! entries {
    ($($family:literal {
        $($name:literal $application:literal $file:literal [$($digest:expr)?] $pixels:ident $side:literal;)*
    })*) => {
        pub(super) const ENTRIES: &[PretrainedEntry] = &[$($(PretrainedEntry {
            publisher: "keras",
            name: $name,
            revision: "imagenet",
            source: concat!("https://storage.googleapis.com/tensorflow/keras-applications/", $family, "/"),
            file: RemoteFile { file: $file, size: None, digests: &[$($digest)?] },
            last_tried: None,
            digests_from: "keras 3.15.1, keras/src/applications",
            license: "none stated for the weights, which were trained on ImageNet; Keras is Apache-2.0",
            application: Some($application),
            pixels: PixelScaling::$pixels,
            resize: ResizeTarget::Exact([$side; 2]),
            side: $side,
        }),*),*];
    };
}

// Name, Systole's application, file, digest, scaling of pixels, side of images. Keras states no digest of MobileNet and
// MobileNetV2.
entries! {
    "resnet" {
        "ResNet50" "resnet50" "resnet50_weights_tf_dim_ordering_tf_kernels.h5" [Md5("2cb95161c43110f7111970584f804107")] Caffe 224;
        "ResNet101" "resnet101" "resnet101_weights_tf_dim_ordering_tf_kernels.h5" [Md5("f1aeb4b969a6efcfb50fad2f0c20cfc5")] Caffe 224;
        "ResNet152" "resnet152" "resnet152_weights_tf_dim_ordering_tf_kernels.h5" [Md5("100835be76be38e30d865e96f2aaae62")] Caffe 224;
        "ResNet50V2" "resnet50v2" "resnet50v2_weights_tf_dim_ordering_tf_kernels.h5" [Md5("3ef43a0b657b3be2300d5770ece849e0")] Symmetric 224;
        "ResNet101V2" "resnet101v2" "resnet101v2_weights_tf_dim_ordering_tf_kernels.h5" [Md5("6343647c601c52e1368623803854d971")] Symmetric 224;
        "ResNet152V2" "resnet152v2" "resnet152v2_weights_tf_dim_ordering_tf_kernels.h5" [Md5("a49b44d1979771252814e80f8ec446f9")] Symmetric 224;
    }
    "vgg16" {
        "VGG16" "vgg16" "vgg16_weights_tf_dim_ordering_tf_kernels.h5" [Md5("64373286793e3c8b2b4e3219cbf3544b")] Caffe 224;
    }
    "vgg19" {
        "VGG19" "vgg19" "vgg19_weights_tf_dim_ordering_tf_kernels.h5" [Md5("cbe5617147190e668d6c5d5026f83318")] Caffe 224;
    }
    "mobilenet" {
        "MobileNet" "mobilenet" "mobilenet_1_0_224_tf.h5" [] Symmetric 224;
    }
    "mobilenet_v2" {
        "MobileNetV2" "mobilenetv2" "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5" [] Symmetric 224;
    }
    "mobilenet_v3" {
        "MobileNetV3Small" "mobilenetv3small" "weights_mobilenet_v3_small_224_1.0_float.h5" [Md5("8768d4c2e7dee89b9d02b2d03d65d862")] InModel 224;
        "MobileNetV3Large" "mobilenetv3large" "weights_mobilenet_v3_large_224_1.0_float.h5" [Md5("59e551e166be033d707958cf9e29a6a7")] InModel 224;
    }
    "densenet" {
        "DenseNet121" "densenet121" "densenet121_weights_tf_dim_ordering_tf_kernels.h5" [Md5("9d60b8095a5708f2dcce2bca79d332c7")] ImageNet 224;
        "DenseNet169" "densenet169" "densenet169_weights_tf_dim_ordering_tf_kernels.h5" [Md5("d699b8f76981ab1b30698df4c175e90b")] ImageNet 224;
        "DenseNet201" "densenet201" "densenet201_weights_tf_dim_ordering_tf_kernels.h5" [Md5("1ceb130c1ea1b78c3bf6114dbdfd8807")] ImageNet 224;
    }
    "efficientnet_v2" {
        "EfficientNetV2B0" "efficientnetv2b0" "efficientnetv2-b0.h5" [Md5("21ecbf6da12460d5c40bb2f29ceb2188")] InModel 224;
        "EfficientNetV2B1" "efficientnetv2b1" "efficientnetv2-b1.h5" [Md5("069f0534ff22adf035c89e2d9547a9dc")] InModel 240;
        "EfficientNetV2B2" "efficientnetv2b2" "efficientnetv2-b2.h5" [Md5("424e49f28180edbde1e94797771950a7")] InModel 260;
        "EfficientNetV2B3" "efficientnetv2b3" "efficientnetv2-b3.h5" [Md5("1f1fc43bd98a6e4fd8fdfd551e02c7a0")] InModel 300;
        "EfficientNetV2S" "efficientnetv2s" "efficientnetv2-s.h5" [Md5("e1d88a8495beba45748fedd0cecbe016")] InModel 384;
        "EfficientNetV2M" "efficientnetv2m" "efficientnetv2-m.h5" [Md5("a3bf6aa3276309f4fc6a34aa114c95cd")] InModel 480;
        "EfficientNetV2L" "efficientnetv2l" "efficientnetv2-l.h5" [Md5("27e6d408b53c7ebc868fefa357689935")] InModel 480;
    }
    "convnext" {
        "ConvNeXtTiny" "convnexttiny" "convnext_tiny.h5" [Sha256("8ae6e78ce2933352b1ef4008e6dd2f17bc40771563877d156bc6426c7cf503ff")] InModel 224;
        "ConvNeXtSmall" "convnextsmall" "convnext_small.h5" [Sha256("ce1277d8f1ee5a0ef0e171469089c18f5233860ceaf9b168049cb9263fd7483c")] InModel 224;
        "ConvNeXtBase" "convnextbase" "convnext_base.h5" [Sha256("52cbb006d3dadd03f6e095a8ca1aca47aecdd75acb4bc74bce1f5c695d0086e6")] InModel 224;
        "ConvNeXtLarge" "convnextlarge" "convnext_large.h5" [Sha256("070c5ed9ed289581e477741d3b34beffa920db8cf590899d6d2c67fba2a198a6")] InModel 224;
        "ConvNeXtXLarge" "convnextxlarge" "convnext_xlarge.h5" [Sha256("c1f5ccab661354fc3a79a10fa99af82f0fbf10ec65cb894a3ae0815f17a889ee")] InModel 224;
    }
}
