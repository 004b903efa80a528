//! JPEG pictures to `ui8[H, W, C]`, with bounded memory: the frequent kind by a decoder of our own, all others through the
//! `zune-jpeg` crate.

mod baseline;
mod colour;
#[cfg(test)]
mod encoder;
mod huffman;
mod idct;

use super::limit::{is_too_large, most_bytes, too_large};
use std::panic::{AssertUnwindSafe, catch_unwind};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Neither side may be longer.
const MAX_SIDE: usize = 1 << 15;

/// Reads a JPEG from memory: `→ ui8[H, W, 1]` (grey) or `ui8[H, W, 3]` (RGB; CMYK is converted). `name` stands for the
/// file in messages.
///
/// # Errors
/// When it is no JPEG, is damaged or cut, or too large.
pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let wrong = |why: String| {
        Error::new(ErrorKind::Data, "this picture cannot be read")
            .at(name)
            .because(why)
            .hint("open the picture elsewhere and save it again as JPEG or PNG")
    };
    // The end marker is the last thing of a whole file but for padding: a cut one would decode to grey below the cut.
    if !after_headers(bytes).windows(2).rev().any(|w| w == [0xff, 0xd9]) {
        return Err(wrong("the file is cut short: it has no end marker".into()));
    }
    most_bytes()?;
    caught(|| decode(bytes)).map_err(wrong)
}

/// What follows the header of the first scan: a thumbnail before it has an end marker of its own.
fn after_headers(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        match *rest {
            [0xff, 0xff, ..] => rest = &rest[1..],
            [0xff, 0xda, ..] => return rest,
            [0xff, _, high, low, ..] => match rest.get(2 + usize::from(u16::from_be_bytes([high, low]))..) {
                Some(next) => rest = next,
                None => return &[],
            },
            // No headers as they should be: the decoder says what is wrong with them.
            _ => return rest,
        }
    }
}

/// The general decoder's authors call panics on damaged files defects; there are some.
fn caught<T>(read: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err("the decoder gave up".into()))
}

/// Height, width and channels (1 or 3), from the headers alone.
///
/// # Errors
/// When there are none.
pub(crate) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    caught(|| headers(bytes).map(|(_, size)| size))
        .map_err(|why| Error::new(ErrorKind::Data, "this picture cannot be read").at(name).because(why))
}

/// What the decoder of the frequent kind makes of a picture, which leaves all others alone, and what the general one does.
/// For tests of the one against the other: [`from_bytes`] takes the first answer that there is.
#[doc(hidden)]
pub fn both_decoders(bytes: &[u8]) -> (Option<Literal>, Result<Literal, String>) {
    (baseline(bytes), caught(|| general(bytes)))
}

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn headers(bytes: &[u8]) -> Result<(Decoder<'_>, [usize; 3]), String> {
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| format!("{e:?}"))?;
    let (wanted, channels) = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => (ColorSpace::Luma, 1),
        _ => (ColorSpace::RGB, 3),
    };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let info = decoder.info().ok_or("it has no size")?;
    Ok((decoder, [usize::from(info.height), usize::from(info.width), channels]))
}

fn decode(bytes: &[u8]) -> Result<Literal, String> {
    match baseline(bytes) {
        Some(picture) => Ok(picture),
        None => general(bytes),
    }
}

/// `None`: for the general decoder.
fn baseline(bytes: &[u8]) -> Option<Literal> {
    let frame = baseline::Frame::of(bytes)?;
    let size = [frame.height, frame.width, frame.channels()];
    if frame.height > MAX_SIDE || frame.width > MAX_SIDE || is_too_large(size.iter().product()) {
        return None;
    }
    let mut out = Literal::unfilled(TensorType::new(DType::U8, size));
    frame.decode(out.bytes_mut())?;
    Some(out)
}

fn general(bytes: &[u8]) -> Result<Literal, String> {
    let (mut decoder, size) = headers(bytes)?;
    if is_too_large(size.iter().product()) {
        let [h, w, _] = size;
        return Err(format!("{w} × {h} pixels are too many: {}", too_large()));
    }
    let mut out = Literal::zeros(TensorType::new(DType::U8, size));
    decoder.decode_into(out.bytes_mut()).map_err(|e| format!("{e:?}"))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLOUR: &[u8] = include_bytes!("../../fixtures/gradient.jpg");
    const GREY: &[u8] = include_bytes!("../../fixtures/grey.jpg");
    const PROGRESSIVE: &[u8] = include_bytes!("../../fixtures/progressive.jpg");

    /// The picture that the fixtures were made of: red grows to the right, green downward, blue is 128.
    fn near_the_original(x: &Literal) -> bool {
        let (h, w) = (x.shape()[0], x.shape()[1]);
        let pixel = |i: usize, j: usize| [(j * 10) as u8, (i * 15) as u8, 128];
        let all = (0..h * w).all(|p| {
            let expected = pixel(p / w, p % w);
            x.bytes()[3 * p..][..3].iter().zip(expected).all(|(a, b)| a.abs_diff(b) < 12)
        });
        all && (h, w) == (12, 20)
    }

    #[test]
    fn pictures_of_tensorflow_and_pillow_are_read() {
        for bytes in [COLOUR, PROGRESSIVE] {
            let x = from_bytes("p", bytes).unwrap();
            assert!(x.ty().to_string() == "ui8[12, 20, 3]" && near_the_original(&x), "{x:?}");
        }
        assert_eq!(from_bytes("g", GREY).unwrap().ty().to_string(), "ui8[7, 9, 1]");
    }

    #[test]
    fn pixels_of_the_frequent_kind_are_libjpegs_to_the_bit() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/data/jpeg");
        for name in ["half", "full", "grey", "even"] {
            let bytes = std::fs::read(format!("{folder}/{name}.jpg")).unwrap();
            let expected = crate::format::picture::read(format!("{folder}/{name}.png")).unwrap();
            assert!(baseline(&bytes).expect(name) == expected, "{name}");
        }
    }

    #[test]
    fn both_decoders_agree_on_every_layout() {
        let mut draws = systole_base::rng::Stream::new(1, 2, 3);
        let mut below = |n| draws.below(n) as usize;
        for seed in 0..160 {
            let sampling = [None, Some((1, 1)), Some((2, 1)), Some((2, 2))][below(4)];
            let (width, height) = (5 + below(60), 1 + below(60));
            let (coarse, restart) = ([0, 1, 8, 60, 500][below(5)], [0, 0, 1, 3, 11][below(5)]);
            let layout = encoder::Layout { width, height, sampling, coarse, restart, seed };
            let bytes = encoder::jpeg(&layout);
            let what =
                format!("{width} × {height}, {sampling:?}, steps {coarse}, restart {restart}, seed {seed}");
            let (ours, other) = (baseline(&bytes).expect(&what), general(&bytes).unwrap());
            assert_eq!(ours.ty(), other.ty(), "{what}");
            let apart = ours.bytes().iter().zip(other.bytes()).map(|(a, b)| a.abs_diff(*b));
            let (most, sum) = apart.fold((0, 0), |(m, s), d| (m.max(d), s + usize::from(d)));
            let mean = sum as f64 / ours.bytes().len() as f64;
            // Between samples of colour the other one does not round as libjpeg does, which the test above is for.
            let far = if matches!(sampling, Some((2, _))) { 16 } else { 4 };
            assert!(most <= far && mean < 0.7, "{what}: up to {most} levels apart, {mean} on average");
        }
    }

    #[test]
    fn a_photo_is_cut_short_though_its_thumbnail_is_whole() {
        for photo in [COLOUR, PROGRESSIVE] {
            // An application segment with a whole picture in it, as cameras write it.
            let length = (GREY.len() as u16 + 2).to_be_bytes();
            let whole = [&photo[..2], &[0xff, 0xe1], &length, GREY, &photo[2..]].concat();
            assert!(from_bytes("whole", &whole).unwrap() == from_bytes("plain", photo).unwrap());
            for cut in [photo.len() - 2, photo.len() - 20, photo.len() / 2] {
                let cut = &whole[..whole.len() - photo.len() + cut];
                let e = from_bytes("thumb.jpg", cut).unwrap_err().to_string();
                assert!(e.contains("thumb.jpg"), "{e}");
            }
        }
    }

    #[test]
    fn where_the_general_decoder_panics_there_is_an_error() {
        // Found by the fuzzer: zune-jpeg 0.5.15 unwraps nothing while it places a block.
        let bytes = include_bytes!("../../fixtures/gives-up.jpg");
        let error = from_bytes("gives-up.jpg", bytes).unwrap_err().to_string();
        assert!(error.contains("gives-up.jpg") && error.contains("the decoder gave up"), "{error}");
    }

    #[test]
    fn damage_is_an_error_or_another_picture_and_never_a_panic() {
        let layout =
            encoder::Layout { width: 21, height: 18, sampling: Some((2, 2)), coarse: 9, restart: 1, seed: 1 };
        let restarts = encoder::jpeg(&layout);
        for good in [COLOUR, GREY, PROGRESSIVE, &restarts] {
            for cut in 0..good.len() - 2 {
                assert!(from_bytes("cut", &good[..cut]).is_err(), "cut at {cut} of {}", good.len());
            }
            for bit in (0..good.len() * 8).step_by(3) {
                let mut bad = good.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                if let Err(e) = from_bytes("flipped", &bad) {
                    assert!(e.to_string().contains("flipped"));
                }
            }
        }
        assert!(from_bytes("text", b"hello").unwrap_err().to_string().contains("cannot be read"));
    }
}
