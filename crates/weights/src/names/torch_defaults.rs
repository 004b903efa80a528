//! Arguments of layers that a state_dict does not contain, and whose defaults differ between Keras and PyTorch.

use systole_nn::layers::Padding;
use systole_nn::{LayerLowering, Model};

/// Whether a layer has Keras's value, and the text of the warning.
type DefaultRow = (fn(&LayerLowering) -> bool, &'static str);

const ROWS: [DefaultRow; 3] = [
    (
        |own| match own {
            LayerLowering::BatchNormalization { epsilon, .. }
            | LayerLowering::LayerNormalization { epsilon, .. } => *epsilon == 1e-3,
            _ => false,
        },
        "epsilon is 0.001, Keras's default; PyTorch's is 1e-5: set epsilon = 1e-5 if the file's module has it",
    ),
    (
        |own| matches!(own, LayerLowering::LeakyRelu(slope) if (*slope - 0.3).abs() < 1e-6),
        "negative_slope is 0.3, Keras's default; PyTorch's is 0.01: set negative_slope = 0.01 if the file's module has it",
    ),
    (
        |own| {
            let (padding, strides) = match own {
                LayerLowering::Convolution(c) => (c.padding, &c.strides),
                LayerLowering::Pooling { size, strides, padding, .. } if size != strides => {
                    (*padding, strides)
                }
                _ => return false,
            };
            padding == Padding::Same && strides.iter().any(|s| *s > 1)
        },
        "padding \"same\" with strides pads the end more than the start; PyTorch's padding = 1 pads both alike: use a \
         ZeroPadding2D layer and padding \"valid\"",
    ),
];

/// Returns a warning for each difference between Keras and PyTorch that the weights cannot show: the model's layers that have
/// Keras's value.
pub(crate) fn warnings(model: &Model) -> Vec<String> {
    let warning = |(is_one, what): DefaultRow| {
        let nodes = model.architecture().nodes.iter();
        let found = nodes.filter(|node| node.layer.layer().lowering().is_ok_and(|own| is_one(&own)));
        let names: Vec<&str> = found.map(|node| node.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("{}: {what}", names.join(", ")))
    };
    ROWS.into_iter().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_nn::layers::{
        batch_normalization, conv2d, layer_normalization, leaky_relu, max_pooling2d, zero_padding2d,
    };

    #[test]
    fn only_layers_with_kerass_values_are_named() {
        let keras = Model::sequential([
            conv2d(4, [3, 3]).strides(2).padding("same").name("down"),
            max_pooling2d((3, 3)).strides(2).padding("same").name("pool"),
            batch_normalization().name("bn"),
            leaky_relu().name("leaky"),
        ]);
        let found = warnings(&keras);
        assert_eq!(found.len(), 3, "{found:?}");
        for (name, key) in [("bn", "epsilon"), ("leaky", "negative_slope"), ("down, pool", "ZeroPadding2D")] {
            assert!(
                found.iter().any(|text| text.starts_with(&format!("{name}: ")) && text.contains(key)),
                "{found:?}"
            );
        }
        let torch = Model::sequential([
            zero_padding2d(1),
            conv2d(4, [3, 3]).strides(2),
            conv2d(4, [3, 3]).padding("same"),
            max_pooling2d((2, 2)).padding("same"),
            batch_normalization().epsilon(1e-5),
            layer_normalization().epsilon(1e-5),
            leaky_relu().negative_slope(0.01),
        ]);
        assert_eq!(warnings(&torch), Vec::<String>::new());
    }
}
