//! `data.augment`: image augmentations by name, drawn at random for every image and epoch; test-time augmentation.

use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;
use systole_base::rng::{RandomStream, hash_name};
use systole_data::image_ops::{AugTransforms, RandAugment, RandomResizedCrop, cutmix, mixup_each};
use systole_data::{HostArray, Sample};
use systole_ir::Result;
use toml::{Table, Value};

/// Transform of one image, `u8[H, W, C]`.
pub(super) type ImageTransformFn = Arc<dyn Fn(HostArray, &mut RandomStream) -> HostArray + Send + Sync>;

/// Augmentation without a value: name (Keras's layer name), description, transform of `u8[H, W, C]`.
type NamedTransform = (&'static str, &'static str, fn(HostArray, &mut RandomStream) -> HostArray);

/// Effect of an augmentation that takes a value (`rotate=10`).
enum AugmentEffect {
    /// Sets a field of the one combined geometric and lighting transform.
    Transforms(fn(&mut AugTransforms, f64)),
    /// Separate image transform.
    Change(fn(f64) -> ImageTransformFn),
    /// Mixes the images of a batch.
    Mix(MixBatchFn),
}

/// Function that mixes the images and labels of a batch, given the alpha of the Beta distribution.
type MixBatchFn = fn(Sample, &str, &str, f64, &mut RandomStream) -> systole_ir::Result<Sample>;

/// Augmentation that takes a value: name, description, default, minimum, maximum and effect.
struct ValuedAugmentation {
    name: &'static str,
    about: &'static str,
    value: Option<f64>,
    range: (f64, f64),
    part: AugmentEffect,
}

const fn of_all(
    name: &'static str,
    about: &'static str,
    value: Option<f64>,
    range: (f64, f64),
    set: fn(&mut AugTransforms, f64),
) -> ValuedAugmentation {
    ValuedAugmentation { name, about, value, range, part: AugmentEffect::Transforms(set) }
}

const VALUED: [ValuedAugmentation; 12] = [
    of_all(
        "aug_transforms",
        "fastai's aug_transforms: flip, rotate, zoom, warp and lighting, scaled by the value",
        Some(1.0),
        (0.0, 4.0),
        |t, v| {
            let usual = AugTransforms::default();
            *t = AugTransforms {
                max_rotate: usual.max_rotate * v,
                max_lighting: (usual.max_lighting * v).min(0.95),
                max_warp: (usual.max_warp * v).min(0.95),
                flip_vert: t.flip_vert,
                ..usual
            };
        },
    ),
    of_all("flip", "flips left to right with probability 0.5", None, (0.0, 0.0), |t, _| t.do_flip = true),
    of_all(
        "flip_vert",
        "one of the eight symmetries of the square with probability 0.5; non-square images keep their shape",
        None,
        (0.0, 0.0),
        |t, _| (t.do_flip, t.flip_vert) = (true, true),
    ),
    of_all(
        "rotate",
        "rotates by up to this many degrees either way with probability 0.75",
        Some(10.0),
        (0.0, 180.0),
        |t, v| {
            t.max_rotate = v;
        },
    ),
    of_all(
        "zoom",
        "zooms in by up to this factor at a random position with probability 0.75",
        Some(1.1),
        (1.0, 10.0),
        |t, v| {
            t.max_zoom = v;
        },
    ),
    of_all(
        "warp",
        "random perspective: corners move by up to this fraction of half a side",
        Some(0.2),
        (0.0, 0.95),
        |t, v| {
            t.max_warp = v;
        },
    ),
    of_all(
        "lighting",
        "changes brightness and contrast by up to this fraction with probability 0.75",
        Some(0.2),
        (0.0, 0.95),
        |t, v| {
            t.max_lighting = v;
        },
    ),
    ValuedAugmentation {
        name: "crop",
        about: "shifts by up to this many pixels in each direction; pads with black",
        value: Some(4.0),
        range: (1.0, 1000.0),
        part: AugmentEffect::Change(|v| Arc::new(move |x, rng| moved(x, v as usize, rng))),
    },
    ValuedAugmentation {
        name: "erase",
        about: "random erasing with this probability: a rectangle of 2 to 33 % of the area becomes noise",
        value: Some(0.5),
        range: (0.0, 1.0),
        part: AugmentEffect::Change(|v| Arc::new(move |x, rng| x.random_erasing(v, rng))),
    },
    ValuedAugmentation {
        name: "mixup",
        about: "mixup: blends each image and label with another of the batch, with a ratio from Beta(alpha, alpha)",
        value: Some(0.4),
        range: (0.001, 100.0),
        part: AugmentEffect::Mix(mixup_each),
    },
    ValuedAugmentation {
        name: "cutmix",
        about: "cutmix: pastes a rectangle of another image and mixes the labels by area; with mixup, one of both per batch",
        value: Some(1.0),
        range: (0.001, 100.0),
        part: AugmentEffect::Mix(cutmix),
    },
    ValuedAugmentation {
        name: "randaugment",
        about: "RandAugment: this many of fourteen random operations for each image; saturation leaves grayscale images unchanged",
        value: Some(2.0),
        range: (1.0, 14.0),
        part: AugmentEffect::Change(|v| {
            let options = RandAugment { count: v as usize, ..RandAugment::default() };
            Arc::new(move |x, rng| x.rand_augment(options, rng))
        }),
    },
];

/// Augmentations of [`VALUED`] whose value is an integer.
const WHOLE: [&str; 2] = ["crop", "randaugment"];

const CHANGES: [NamedTransform; 10] = [
    ("random_flip", "flips left to right with probability 0.5", |x, rng| x.random_flip_left_right(rng)),
    ("random_flip_up_down", "flips upside down with probability 0.5", |x, rng| x.random_flip_up_down(rng)),
    ("random_translation", "shifts by up to a tenth of the size in each direction", translated),
    ("random_rotation", "rotates by up to 15 degrees either way", |x, rng| {
        x.rotate(between(-15.0, 15.0, rng))
    }),
    ("random_zoom", "crops 60 to 100 % of the area and resizes it to the full size", zoomed),
    ("random_brightness", "adds or subtracts up to a tenth of the value range", |x, rng| {
        x.random_brightness(0.1, rng)
    }),
    ("random_contrast", "multiplies the contrast by 0.8 to 1.2", |x, rng| x.random_contrast(0.8, 1.2, rng)),
    ("random_saturation", "multiplies the saturation by 0.7 to 1.3; color images only", |x, rng| {
        x.random_saturation(0.7, 1.3, rng)
    }),
    ("random_hue", "shifts the hue by up to 0.04 of the circle; color images only", |x, rng| {
        x.random_hue(0.04, rng)
    }),
    (
        "rand_augment",
        "RandAugment: two of fourteen random operations for each image; saturation leaves grayscale images unchanged",
        |x, rng| x.rand_augment(RandAugment::default(), rng),
    ),
];

/// Returns name, default value (if it takes one) and description of every augmentation of `data.augment`.
pub fn augmentations() -> Vec<(&'static str, Option<f64>, &'static str)> {
    let valued = VALUED.iter().map(|v| (v.name, v.value, v.about));
    valued.chain(CHANGES.iter().map(|(name, about, _)| (*name, None, *about))).collect()
}

/// Augmentations that change only color.
const COLOUR: [&str; 2] = ["random_saturation", "random_hue"];

/// Deserializes a list of names, some with a value (`"rotate=10"`), or a table (`rotate = 10`, `flip = true`).
pub(super) fn list_or_table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a list such as [\"flip\", \"rotate=10\"], or a table such as { flip = true, rotate = 10 }"
    )]
    enum Augment {
        List(Vec<String>),
        Table(Table),
    }
    Ok(match Augment::deserialize(deserializer)? {
        Augment::List(names) => names,
        Augment::Table(table) => {
            let item = |(name, value): (String, Value)| match value {
                Value::Boolean(true) => Some(name),
                Value::Boolean(false) => None,
                value => Some(format!("{name}={value}")),
            };
            // A table has no order: use the order of the known names.
            let known = augmentations();
            let place = |name: &str| known.iter().position(|(n, ..)| *n == name);
            let mut entries: Vec<(String, Value)> = table.into_iter().collect();
            entries.sort_by_key(|(name, _)| place(name));
            entries.into_iter().filter_map(item).collect()
        }
    })
}

fn between(low: f64, high: f64, rng: &mut RandomStream) -> f64 {
    low + (high - low) * rng.uniform_f64()
}

fn sides(x: &HostArray) -> (usize, usize) {
    match x.ty().map(|t| t.shape.to_vec()).as_deref() {
        Ok([h, w, _]) => (*h, *w),
        _ => (1, 1),
    }
}

/// Shifts by up to a tenth of the size in each direction.
fn translated(x: HostArray, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    moved(x, h.max(w).div_ceil(10), rng)
}

/// Shifts by up to `by` pixels in each direction.
fn moved(x: HostArray, by: usize, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    x.pad_image(by).random_crop(h, w, rng)
}

/// Crops 60 to 100 % of the area and resizes it back.
fn zoomed(x: HostArray, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    x.random_resized_crop(h, w, RandomResizedCrop { area: (0.6, 1.0), ..RandomResizedCrop::default() }, rng)
}

/// Returns the image transforms with these names, for color or grayscale images, in list order. The geometric and
/// lighting parts are combined into one transform at the position of the first of them.
pub(super) fn changes(names: &[String], in_colour: bool) -> Result<Vec<ImageTransformFn>, KeyError> {
    let mut all: Vec<ImageTransformFn> = Vec::new();
    let mut transforms: Option<(usize, AugTransforms)> = None;
    for item in names {
        let (name, value) =
            item.split_once('=').map_or((item.as_str(), None), |(n, v)| (n.trim(), Some(v.trim())));
        if !in_colour && COLOUR.contains(&name) {
            let what = format!("{name} needs color images, but the images are grayscale");
            return Err(KeyError::new("data.augment", what).hint_setting(
                "leave the augmentation out, or set data.color_mode = \"rgb\" for a folder of images",
            ));
        }
        if let Some((.., change)) = CHANGES.iter().find(|(n, ..)| *n == name) {
            if let Some(value) = value {
                let what = format!("`{name}={value}`: {name} takes no value");
                return Err(KeyError::new("data.augment", what).hint_setting(format!("write `{name}`")));
            }
            all.push(Arc::new(*change));
            continue;
        }
        let Some(valued) = VALUED.iter().find(|v| v.name == name) else {
            let known: Vec<&str> = augmentations().iter().map(|(n, ..)| *n).collect();
            return Err(KeyError::of("data.augment", unknown("unknown augmentation", name, &known)));
        };
        let value = valued.value_of(value)?;
        match valued.part {
            AugmentEffect::Mix(_) => {}
            AugmentEffect::Change(make) => all.push(make(value)),
            AugmentEffect::Transforms(set) => {
                let (_, options) = transforms.get_or_insert_with(|| (all.len(), AugTransforms::none()));
                set(options, value);
            }
        }
    }
    if let Some((at, options)) = transforms {
        all.insert(at, Arc::new(move |x, rng| x.aug_transforms(options, rng)));
    }
    Ok(all)
}

/// Batch mixing function and its alpha.
pub(super) struct BatchMixing {
    how: MixBatchFn,
    alpha: f64,
}

/// Returns the batch mixing functions among these names. [`changes`] reports invalid names.
pub(super) fn mixes(names: &[String]) -> Vec<BatchMixing> {
    let mix = |item: &String| {
        let (name, value) =
            item.split_once('=').map_or((item.as_str(), None), |(n, v)| (n.trim(), Some(v.trim())));
        let valued = VALUED.iter().find(|v| v.name == name)?;
        let AugmentEffect::Mix(how) = valued.part else { return None };
        Some(BatchMixing { how, alpha: valued.value_of(value).ok()? })
    };
    names.iter().filter_map(mix).collect()
}

/// `image: f32[B, …], label: f32[B, C]`: applies one randomly chosen entry of `mixes`.
pub(super) fn mixed(
    batch: Sample,
    mixes: &[BatchMixing],
    rng: &mut RandomStream,
) -> systole_ir::Result<Sample> {
    match mixes {
        [] => Ok(batch),
        mixes => {
            let BatchMixing { how, alpha } = &mixes[rng.below(mixes.len() as u64) as usize];
            how(batch, "image", "label", *alpha, rng)
        }
    }
}

/// Test-time augmentation: the training augmentations, or fastai's `aug_transforms` if training has none.
pub struct TestTimeAugmentation {
    changes: Vec<ImageTransformFn>,
    seed: u64,
}

impl TestTimeAugmentation {
    /// Creates the test-time augmentation from the `data.augment` and the seed that a model was trained with.
    ///
    /// # Errors
    /// If `data.augment` contains an unknown name.
    pub fn of(names: &[String], seed: u64, in_colour: bool) -> systole_ir::Result<TestTimeAugmentation> {
        let changes = changes(&test_time(names), in_colour).map_err(|wrong| wrong.error)?;
        Ok(TestTimeAugmentation { changes, seed })
    }

    /// `x: T[H, W, C] → T[H, W, C]`: augmented version `version` of image `index`.
    pub fn apply(&self, x: HostArray, version: u64, index: u64) -> HostArray {
        let mut rng = RandomStream::new(version_seed(self.seed, version), hash_name("test_time"), index);
        self.changes.iter().fold(x, |x, change| change(x, &mut rng))
    }
}

pub(super) fn test_time(names: &[String]) -> Vec<String> {
    let is_mix = |item: &&String| ["mixup", "cutmix"].iter().any(|name| item.split('=').next() == Some(name));
    let own: Vec<String> = names.iter().filter(|item| !is_mix(item)).cloned().collect();
    if own.is_empty() { vec!["aug_transforms".into()] } else { own }
}

/// Returns a separate seed for each version, distinct from the training seed.
pub(super) fn version_seed(seed: u64, version: u64) -> u64 {
    seed ^ hash_name("test_time").wrapping_add(version.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl ValuedAugmentation {
    fn value_of(&self, written: Option<&str>) -> Result<f64, KeyError> {
        let (name, (least, most)) = (self.name, self.range);
        let Some(usual) = self.value else {
            return match written {
                None => Ok(0.0),
                Some(v) => {
                    let what = format!("`{name}={v}`: {name} takes no value");
                    Err(KeyError::new("data.augment", what).hint_setting(format!("write `{name}`")))
                }
            };
        };
        let Some(written) = written else { return Ok(usual) };
        let is_whole = WHOLE.contains(&name);
        let value = written.parse::<f64>().ok().filter(|v| (least..=most).contains(v));
        value.filter(|v| !is_whole || v.fract() == 0.0).ok_or_else(|| {
            let kind = if is_whole { "an integer" } else { "a number" };
            let what = format!("`{name}={written}`: expected {kind} from {least} to {most}");
            KeyError::new("data.augment", what).hint_setting(format!("write `{name}={usual}`, the default"))
        })
    }
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
                    let out = change(HostArray::from(&x), &mut RandomStream::new(seed, 1, 1));
                    out.into_literal().unwrap_or_else(|e| panic!("{name}: {e}"))
                };
                assert_eq!((of(1).dtype(), of(1).shape()), (DType::U8, x.shape()), "{name}");
                assert_eq!(of(1), of(1), "{name}");
                assert!((0..8).any(|seed| of(seed) != x), "{name} changes nothing");
            }
        }
        let of = |names: &[&str]| changes(&names.iter().map(|n| n.to_string()).collect::<Vec<_>>(), true);
        for (wrong, part) in [
            ("rotate=ten", "from 0 to 180"),
            ("zoom=0.5", "from 1 to 10"),
            ("crop=1.5", "an integer"),
            ("flip=2", "takes no value"),
            ("random_flip=2", "takes no value"),
            ("rotat=3", "`rotate`"),
        ] {
            let e = of(&[wrong]).err().unwrap().error.to_string();
            assert!(e.contains(part), "{wrong}: {e}");
        }
        // Geometric and lighting augmentations combine into one transform, as in the preset.
        assert_eq!(
            of(&["flip", "rotate=10", "crop", "zoom", "warp=0.1", "lighting", "erase"]).unwrap().len(),
            3
        );
        assert_eq!(of(&["aug_transforms"]).unwrap().len(), 1);
        let pixels: Vec<u8> = (0..12 * 10).map(|i| (i * 7 % 256) as u8).collect();
        let x = Literal::from_slice([12, 10, 1], &pixels).unwrap();
        for mixes in ["mixup", "cutmix"] {
            assert!(changes(&[mixes.into()], false).unwrap().is_empty(), "{mixes} changes batches");
        }
        for valued in VALUED.iter().filter(|v| !["randaugment", "mixup", "cutmix"].contains(&v.name)) {
            let change = changes(&[valued.name.into()], false).unwrap().remove(0);
            let out = |seed| {
                change(HostArray::from(&x), &mut RandomStream::new(seed, 1, 1)).into_literal().unwrap()
            };
            assert_eq!((out(1).ty(), out(2)), (x.ty(), out(2)), "{}", valued.name);
            assert!((0..12).any(|seed| out(seed) != x), "{} changes nothing", valued.name);
        }
        let e = changes(&["random_flop".into()], true).err().unwrap();
        assert!(e.error.to_string().contains("`random_flip`"));
    }
}
