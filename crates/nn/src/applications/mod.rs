//! Built-in model architectures (ResNet, MobileNet, ViT, BERT, GPT-2, …) with Keras's and KerasHub's names and
//! arguments.
//!
//! One file per family, one table row per name. Depths and widths are also arguments, so that small variants can be
//! built and tested.

mod bert;
pub mod biggan;
mod common;
mod convnext;
mod densenet;
mod efficientnet_v2;
mod gpt2;
mod mobilenet;
mod mobilenet_v2;
mod mobilenet_v3;
mod resnet;
mod resnet_v2;
mod unet;
mod vgg;
mod vit;

pub use bert::Bert;
pub use convnext::ConvNeXt;
pub use densenet::DenseNet;
pub use efficientnet_v2::EfficientNetV2;
pub use gpt2::Gpt2;
pub use mobilenet::MobileNet;
pub use mobilenet_v2::MobileNetV2;
pub use mobilenet_v3::MobileNetV3;
pub use resnet::{ResNet18, ResNet50};
pub use resnet_v2::ResNet50V2;
pub use unet::UNet;
pub use vgg::Vgg;
pub use vit::ViT;

use crate::did_you_mean::{unknown, with_reason};
use crate::json::Serialize;
use crate::model::architecture::Architecture;
use serde_json::{Map, Value};
use systole_ir::{Error, ErrorKind, Result, err};

/// Table entry of a built-in architecture (Keras application).
pub struct Application {
    /// Name in configurations.
    pub name: &'static str,
    /// Argument struct, and the file that defines it.
    pub family: (&'static str, &'static str),
    build: fn(&Map<String, Value>) -> Result<Architecture>,
    defaults: fn() -> serde_json::Result<Value>,
}

impl Application {
    /// Returns all arguments of the architecture with their defaults.
    ///
    /// # Errors
    /// None in practice: every argument is representable as JSON.
    pub fn defaults(&self) -> Result<Value> {
        (self.defaults)().map_err(|e| Error::new(ErrorKind::Bug, e.to_string()))
    }
}

macro_rules! applications {
    ($($name:literal: $family:ident in $file:literal = $base:expr;)*) => {
        /// Names of built-in architectures that [`by_name`] accepts.
        pub const APPLICATIONS: &[&str] = &[$($name),*];

        /// Table of built-in architectures in the order of [`APPLICATIONS`].
        pub const TABLE: &[Application] = &[$(Application {
            name: $name,
            family: (stringify!($family), $file),
            build: |arguments| with_arguments::<$family>($name, $base, arguments)?.architecture(),
            defaults: || serde_json::to_value::<$family>($base),
        }),*];
    };
}

// Registers applications, one per row.
applications! {
    "resnet50": ResNet50 in "resnet" = ResNet50::default();
    "resnet101": ResNet50 in "resnet" = ResNet50::of_101();
    "resnet152": ResNet50 in "resnet" = ResNet50::of_152();
    "resnet18": ResNet18 in "resnet" = ResNet18::default();
    "resnet34": ResNet18 in "resnet" = ResNet18::of_34();
    "resnet50v2": ResNet50V2 in "resnet_v2" = ResNet50V2::default();
    "resnet101v2": ResNet50V2 in "resnet_v2" = ResNet50V2::of_101();
    "resnet152v2": ResNet50V2 in "resnet_v2" = ResNet50V2::of_152();
    "vgg16": Vgg in "vgg" = Vgg::default();
    "vgg19": Vgg in "vgg" = Vgg::of_19();
    "mobilenet": MobileNet in "mobilenet" = MobileNet::default();
    "mobilenetv2": MobileNetV2 in "mobilenet_v2" = MobileNetV2::default();
    "mobilenetv3small": MobileNetV3 in "mobilenet_v3" = MobileNetV3::default();
    "mobilenetv3large": MobileNetV3 in "mobilenet_v3" = MobileNetV3::large();
    "densenet121": DenseNet in "densenet" = DenseNet::default();
    "densenet169": DenseNet in "densenet" = DenseNet::of_169();
    "densenet201": DenseNet in "densenet" = DenseNet::of_201();
    "efficientnetv2b0": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::default();
    "efficientnetv2b1": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("b1", 1.0, 1.1);
    "efficientnetv2b2": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("b2", 1.1, 1.2);
    "efficientnetv2b3": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("b3", 1.2, 1.4);
    "efficientnetv2s": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("s", 1.0, 1.0);
    "efficientnetv2m": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("m", 1.0, 1.0);
    "efficientnetv2l": EfficientNetV2 in "efficientnet_v2" = EfficientNetV2::of("l", 1.0, 1.0);
    "convnexttiny": ConvNeXt in "convnext" = ConvNeXt::default();
    "convnextsmall": ConvNeXt in "convnext" = ConvNeXt::of("small", 27, 96);
    "convnextbase": ConvNeXt in "convnext" = ConvNeXt::of("base", 27, 128);
    "convnextlarge": ConvNeXt in "convnext" = ConvNeXt::of("large", 27, 192);
    "convnextxlarge": ConvNeXt in "convnext" = ConvNeXt::of("xlarge", 27, 256);
    "unet": UNet in "unet" = UNet::default();
    "vitb16": ViT in "vit" = ViT::default();
    "vitb32": ViT in "vit" = ViT::of(32, 12, 768);
    "vitl16": ViT in "vit" = ViT::of(16, 24, 1024);
    "bertbase": Bert in "bert" = Bert::default();
    "bertlarge": Bert in "bert" = Bert::large();
    "gpt2": Gpt2 in "gpt2" = Gpt2::default();
    "gpt2medium": Gpt2 in "gpt2" = Gpt2::of(24, 1024);
    "gpt2large": Gpt2 in "gpt2" = Gpt2::of(36, 1280);
    "gpt2xl": Gpt2 in "gpt2" = Gpt2::of(48, 1600);
}

/// Builds a built-in architecture by name with some of its arguments: `by_name("resnet50", &json!({"classes": 10}))`.
///
/// # Errors
/// If the name or an argument is unknown (suggests the nearest) or a value is invalid.
///
/// ```
/// use serde_json::json;
/// use systole_nn::applications::by_name;
/// let gpt2 = by_name("gpt2", json!({"num_layers": 2}).as_object().unwrap())?;
/// assert!(gpt2.nodes.iter().any(|p| p.name == "transformer_layer_1"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn by_name(name: &str, arguments: &Map<String, Value>) -> Result<Architecture> {
    match TABLE.iter().find(|row| row.name == name) {
        Some(row) => (row.build)(arguments),
        None => Err(unknown(&format!("unknown application `{name}`"), name, APPLICATIONS)),
    }
}

/// Replaces arguments one at a time, so that the error names an invalid one.
fn with_arguments<A>(name: &str, mut made: A, arguments: &Map<String, Value>) -> Result<A>
where
    A: Serialize + serde::de::DeserializeOwned,
{
    let broken = |e: serde_json::Error| Error::new(ErrorKind::Bug, e.to_string());
    let mut config = serde_json::to_value(&made).map_err(broken)?;
    for (key, value) in arguments {
        let known: Vec<String> = config.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        if !known.contains(&key.as_str()) {
            return Err(unknown(&format!("{name} has no argument `{key}`"), key, &known));
        }
        config[key] = value.clone();
        made = serde_json::from_value(config.clone()).map_err(|e| {
            with_reason(err!(Config, "invalid value for {name}'s argument `{key}`: {value}"), &e.to_string())
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_blocks_out_of_place_are_refused_before_anything_is_built() {
        let refused = |made: Result<Architecture>| made.err().unwrap().to_string();
        let deep =
            refused(Gpt2 { num_layers: 8_222_222_222_222_222_222, ..Default::default() }.architecture());
        assert!(
            deep.contains("1000") && deep.contains("num_layers") && deep.contains("8222222222222222222"),
            "{deep}"
        );
        let deep = |depths| refused(ResNet50 { depths, ..Default::default() }.architecture());
        assert!(deep(vec![usize::MAX, 2]).contains("1000 blocks"));
        assert!(deep(vec![1; 70]).contains("16 stacks"));
    }
}
