//! `data.augment`: changes of training pictures by name, each drawn anew for every picture and epoch.

use super::blame::{Wrong, unknown};
use systole_base::rng::Stream;
use systole_data::HostArray;
use systole_data::picture::{RandAugment, ResizedCrop};

type Change = fn(HostArray, &mut Stream) -> HostArray;

/// A change: its name, after Keras's layers, what it does, and that to `u8[H, W, C]`.
type Named = (&'static str, &'static str, Change);

const CHANGES: [Named; 10] = [
    ("random_flip", "mirrors left and right, every second time", |x, rng| x.random_flip_left_right(rng)),
    ("random_flip_up_down", "mirrors up and down, every second time", |x, rng| x.random_flip_up_down(rng)),
    ("random_translation", "moves by up to a tenth of the size to each side", translated),
    ("random_rotation", "turns by up to 15 degrees either way", |x, rng| x.rotate(between(-15.0, 15.0, rng))),
    ("random_zoom", "cuts out a part of 60 to 100 % of the area, brought to the whole size", zoomed),
    ("random_brightness", "adds up to a tenth of the range, or takes it away", |x, rng| {
        x.random_brightness(0.1, rng)
    }),
    ("random_contrast", "contrast times 0.8 to 1.2", |x, rng| x.random_contrast(0.8, 1.2, rng)),
    ("random_saturation", "saturation times 0.7 to 1.3; colour only", |x, rng| {
        x.random_saturation(0.7, 1.3, rng)
    }),
    ("random_hue", "turns the hue by up to 0.04 of the circle; colour only", |x, rng| {
        x.random_hue(0.04, rng)
    }),
    (
        "rand_augment",
        "RandAugment: two changes of fourteen, drawn for each picture; colour only",
        |x, rng| x.rand_augment(RandAugment::default(), rng),
    ),
];

/// Names that `data.augment` takes, and what each does.
pub fn augmentations() -> [(&'static str, &'static str); 10] {
    CHANGES.map(|(name, about, _)| (name, about))
}

/// Those that work on colour only.
const COLOUR: [&str; 3] = ["random_saturation", "random_hue", "rand_augment"];

fn between(low: f64, high: f64, rng: &mut Stream) -> f64 {
    low + (high - low) * rng.uniform_f64()
}

fn sides(x: &HostArray) -> (usize, usize) {
    match x.ty().map(|t| t.shape.to_vec()).as_deref() {
        Ok([h, w, _]) => (*h, *w),
        _ => (1, 1),
    }
}

/// Up to a tenth of its size to each side.
fn translated(x: HostArray, rng: &mut Stream) -> HostArray {
    let (h, w) = sides(&x);
    x.pad_image(h.max(w).div_ceil(10)).random_crop(h, w, rng)
}

/// A part of 60 to 100 % of its area.
fn zoomed(x: HostArray, rng: &mut Stream) -> HostArray {
    let (h, w) = sides(&x);
    x.random_resized_crop(h, w, ResizedCrop { area: (0.6, 1.0), ..ResizedCrop::default() }, rng)
}

/// The changes of these names, for pictures in colour or not.
pub(super) fn changes(names: &[String], in_colour: bool) -> Result<Vec<Change>, Wrong> {
    let find = |name: &String| {
        if let (false, true) = (in_colour, COLOUR.contains(&name.as_str())) {
            let what = format!("{name} changes colours, and the pictures are grey");
            return Err(Wrong::new("data.augment", what).hint("leave it out, or set data.color_mode to rgb"));
        }
        let found = CHANGES.iter().find(|(n, ..)| n == name).map(|(.., f)| *f);
        found.ok_or_else(|| {
            let known = CHANGES.map(|(n, ..)| n);
            Wrong::of("data.augment", unknown("there is no augmentation", name, &known))
        })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, Literal};

    #[test]
    fn every_change_keeps_the_type_and_depends_on_the_draws_only() {
        for channels in [1, 3] {
            let pixels: Vec<u8> = (0..12 * 10 * channels).map(|i| (i * 7 % 256) as u8).collect();
            let x = Literal::from_slice([12, 10, channels], &pixels).unwrap();
            for (name, _, change) in CHANGES {
                if channels == 1 && COLOUR.contains(&name) {
                    assert!(changes(&[name.into()], false).is_err());
                    continue;
                }
                let of = |seed| {
                    let out = change(HostArray::from(&x), &mut Stream::new(seed, 1, 1));
                    out.into_literal().unwrap_or_else(|e| panic!("{name}: {e}"))
                };
                assert_eq!((of(1).dtype(), of(1).shape()), (DType::U8, x.shape()), "{name}");
                assert_eq!(of(1), of(1), "{name}");
                assert!((0..8).any(|seed| of(seed) != x), "{name} changes nothing");
            }
        }
        let e = changes(&["random_flop".into()], true).err().unwrap();
        assert!(e.error.to_string().contains("did you mean `random_flip`"));
    }
}
