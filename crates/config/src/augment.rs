//! `data.augment`: changes of training pictures by name, each drawn anew for every picture and epoch.

use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;
use systole_base::rng::{RandomStream, hash_name};
use systole_data::image_ops::{AugTransforms, RandAugment, RandomResizedCrop, cutmix, mixup_each};
use systole_data::{HostArray, Sample};
use systole_ir::ErrorKind;
use toml::{Table, Value};

/// What is done to `u8[H, W, C]`.
pub(super) type ImageTransformFn = Arc<dyn Fn(HostArray, &mut RandomStream) -> HostArray + Send + Sync>;

/// A change: its name, after Keras's layers, what it does, and that to `u8[H, W, C]`.
type NamedTransform = (&'static str, &'static str, fn(HostArray, &mut RandomStream) -> HostArray);

/// What a name with a value (`rotate=10`) adds.
enum AugmentEffect {
    /// To the one placing and lighting of all.
    Transforms(fn(&mut AugTransforms, f64)),
    /// A change of its own.
    Change(fn(f64) -> ImageTransformFn),
    /// Of whole batches.
    Mix(MixBatchFn),
}

/// How pictures of a batch and their labels are mixed: with which alpha of the Beta distribution.
type MixBatchFn = fn(Sample, &str, &str, f64, &mut RandomStream) -> systole_ir::Result<Sample>;

/// A name, what it does, its usual value and the least and the greatest, and the part.
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
        "fastai's: flip, rotate, zoom, warp and lighting, times the value",
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
    of_all("flip", "mirrors left and right, every second time", None, (0.0, 0.0), |t, _| t.do_flip = true),
    of_all(
        "flip_vert",
        "one of the eight symmetries of a square, every second time; of other pictures one of the four that keep their shape",
        None,
        (0.0, 0.0),
        |t, _| (t.do_flip, t.flip_vert) = (true, true),
    ),
    of_all(
        "rotate",
        "turns by up to so many degrees either way, three times of four",
        Some(10.0),
        (0.0, 180.0),
        |t, v| {
            t.max_rotate = v;
        },
    ),
    of_all(
        "zoom",
        "zooms to up to so many times, three times of four, into any part",
        Some(1.1),
        (1.0, 10.0),
        |t, v| {
            t.max_zoom = v;
        },
    ),
    of_all(
        "warp",
        "another perspective: corners move by up to this part of half a side",
        Some(0.2),
        (0.0, 0.95),
        |t, v| {
            t.max_warp = v;
        },
    ),
    of_all(
        "lighting",
        "brightness and contrast change by up to this part, three times of four",
        Some(0.2),
        (0.0, 0.95),
        |t, v| {
            t.max_lighting = v;
        },
    ),
    ValuedAugmentation {
        name: "crop",
        about: "moves by up to so many pixels to each side; what comes in is black",
        value: Some(4.0),
        range: (1.0, 1000.0),
        part: AugmentEffect::Change(|v| Arc::new(move |x, rng| moved(x, v as usize, rng))),
    },
    ValuedAugmentation {
        name: "erase",
        about: "random erasing: this often, a rectangle of 2 to 33 % of the area becomes noise",
        value: Some(0.5),
        range: (0.0, 1.0),
        part: AugmentEffect::Change(|v| Arc::new(move |x, rng| x.random_erasing(v, rng))),
    },
    ValuedAugmentation {
        name: "mixup",
        about: "each picture and its label mixed with those of another one, by shares from the Beta distribution of this alpha",
        value: Some(0.4),
        range: (0.001, 100.0),
        part: AugmentEffect::Mix(mixup_each),
    },
    ValuedAugmentation {
        name: "cutmix",
        about: "a rectangle of each picture is another one's, and so much of its label; with mixup either of both, batch by batch",
        value: Some(1.0),
        range: (0.001, 100.0),
        part: AugmentEffect::Mix(cutmix),
    },
    ValuedAugmentation {
        name: "randaugment",
        about: "RandAugment: so many changes of fourteen, drawn for each picture; saturation leaves grey ones as they are",
        value: Some(2.0),
        range: (1.0, 14.0),
        part: AugmentEffect::Change(|v| {
            let options = RandAugment { count: v as usize, ..RandAugment::default() };
            Arc::new(move |x, rng| x.rand_augment(options, rng))
        }),
    },
];

/// Those of [`VALUED`] that are one placing and one lighting.
const WHOLE: [&str; 2] = ["crop", "randaugment"];

const CHANGES: [NamedTransform; 10] = [
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
        "RandAugment: two changes of fourteen, drawn for each picture; saturation leaves grey ones as they are",
        |x, rng| x.rand_augment(RandAugment::default(), rng),
    ),
];

/// Names that `data.augment` takes, the usual value of those that have one, and what each does.
pub fn augmentations() -> Vec<(&'static str, Option<f64>, &'static str)> {
    let valued = VALUED.iter().map(|v| (v.name, v.value, v.about));
    valued.chain(CHANGES.iter().map(|(name, about, _)| (*name, None, *about))).collect()
}

/// Those that change nothing but colour.
const COLOUR: [&str; 2] = ["random_saturation", "random_hue"];

/// A list of names, some with a value (`"rotate=10"`), or a table of them (`rotate = 10`, `flip = true`).
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
            // A table has no order: that of the names of which there are.
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

/// Up to a tenth of its size to each side.
fn translated(x: HostArray, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    moved(x, h.max(w).div_ceil(10), rng)
}

/// Up to so many pixels to each side.
fn moved(x: HostArray, by: usize, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    x.pad_image(by).random_crop(h, w, rng)
}

/// A part of 60 to 100 % of its area.
fn zoomed(x: HostArray, rng: &mut RandomStream) -> HostArray {
    let (h, w) = sides(&x);
    x.random_resized_crop(h, w, RandomResizedCrop { area: (0.6, 1.0), ..RandomResizedCrop::default() }, rng)
}

/// The changes of these names, for pictures in colour or not: in the order of the list, those of one placing and lighting
/// together where the first of them stands.
pub(super) fn changes(names: &[String], in_colour: bool) -> Result<Vec<ImageTransformFn>, KeyError> {
    let mut all: Vec<ImageTransformFn> = Vec::new();
    let mut transforms: Option<(usize, AugTransforms)> = None;
    for item in names {
        let (name, value) =
            item.split_once('=').map_or((item.as_str(), None), |(n, v)| (n.trim(), Some(v.trim())));
        if !in_colour && COLOUR.contains(&name) {
            let what = format!("{name} changes colours, and the pictures are grey");
            return Err(KeyError::new("data.augment", what)
                .hint("leave it out; of a folder's pictures data.color_mode may be rgb"));
        }
        if let Some((.., change)) = CHANGES.iter().find(|(n, ..)| *n == name) {
            if let Some(value) = value {
                return Err(KeyError::new("data.augment", format!("{name} takes no value, and has {value}"))
                    .hint("write its name alone"));
            }
            all.push(Arc::new(*change));
            continue;
        }
        let Some(valued) = VALUED.iter().find(|v| v.name == name) else {
            let known: Vec<&str> = augmentations().iter().map(|(n, ..)| *n).collect();
            return Err(KeyError::of("data.augment", unknown("there is no augmentation", name, &known)));
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

/// What mixes the pictures of a batch, and its alpha.
pub(super) struct BatchMixing {
    how: MixBatchFn,
    alpha: f64,
}

/// Those of these names that mix pictures. Wrong ones are told by [`changes`].
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

/// `image: f32[B, …], label: f32[B, C]`: mixed by one of `mixes`.
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

/// Changed versions of test pictures: those that training changes them by, else fastai's `aug_transforms`.
pub struct TestTimeAugmentation {
    changes: Vec<ImageTransformFn>,
    seed: u64,
}

impl TestTimeAugmentation {
    /// For pictures in colour or not, by the `data.augment` and the seed of the configuration that a model was trained with.
    ///
    /// # Errors
    /// When `data.augment` names what there is not.
    pub fn of(names: &[String], seed: u64, in_colour: bool) -> systole_ir::Result<TestTimeAugmentation> {
        let changes = changes(&test_time(names), in_colour).map_err(|wrong| wrong.error)?;
        Ok(TestTimeAugmentation { changes, seed })
    }

    /// `x: T[H, W, C] → T[H, W, C]`: version `version` of picture `index`.
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

/// Another seed for each version, far from that of training.
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
                    let what = format!("{name} takes no value, and has {v}");
                    Err(KeyError::new("data.augment", what).hint("write its name alone"))
                }
            };
        };
        let Some(written) = written else { return Ok(usual) };
        let is_whole = WHOLE.contains(&name);
        let value = written.parse::<f64>().ok().filter(|v| (least..=most).contains(v));
        value.filter(|v| !is_whole || v.fract() == 0.0).ok_or_else(|| {
            let kind = if is_whole { "a whole number" } else { "a number" };
            let e = systole_ir::Error::new(ErrorKind::Config, format!("{name} cannot be {written}"));
            KeyError::of(
                "data.augment",
                e.hint(format!("choose {kind} from {least} to {most}; {usual} is usual")),
            )
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
            ("crop=1.5", "a whole number"),
            ("flip=2", "takes no value"),
            ("random_flip=2", "takes no value"),
            ("rotat=3", "did you mean `rotate`"),
        ] {
            let e = of(&[wrong]).err().unwrap().error.to_string();
            assert!(e.contains(part), "{wrong}: {e}");
        }
        // All placing is one: a list of parts is one change, as the preset is.
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
        assert!(e.error.to_string().contains("did you mean `random_flip`"));
    }
}
