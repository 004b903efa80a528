//! Compares the baseline JPEG decoder with the general one, on valid and damaged files.

mod encoder;

use super::*;
use systole_base::ErrorKind;
use systole_testing::assert_error;

const COLOUR: &[u8] = include_bytes!("../../../../fixtures/gradient.jpg");
const GREY: &[u8] = include_bytes!("../../../../fixtures/grey.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("../../../../fixtures/progressive.jpg");

/// The image that the fixtures were made from: red increases to the right, green downward, blue is 128.
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
        let expected = crate::format::any_format::read(format!("{folder}/{name}.png")).unwrap();
        assert!(baseline(&bytes).expect(name) == expected, "{name}");
    }
}

#[test]
fn both_decoders_agree_on_every_layout() {
    let mut draws = systole_base::rng::RandomStream::new(1, 2, 3);
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
        // The general decoder rounds interpolated chroma differently from libjpeg, which the test above covers.
        let far = if matches!(sampling, Some((2, _))) { 16 } else { 4 };
        assert!(most <= far && mean < 0.7, "{what}: up to {most} levels apart, {mean} on average");
    }
}

#[test]
fn a_photo_is_cut_short_though_its_thumbnail_is_whole() {
    for photo in [COLOUR, PROGRESSIVE] {
        // An application segment that contains a whole image (a thumbnail), as cameras write it.
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
    // Found by the fuzzer: zune-jpeg 0.5.15 unwraps a `None` while it stores a block.
    let bytes = include_bytes!("../../../../fixtures/gives-up.jpg");
    assert_error(&from_bytes("gives-up.jpg", bytes).unwrap_err(), ErrorKind::Data, &["gives-up.jpg"]);
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
    assert_error(&from_bytes("text", b"hello").unwrap_err(), ErrorKind::Data, &["text"]);
}

#[test]
fn adobes_marker_selects_the_decoder() {
    let with_marker = |transform: u8| {
        let marker = [&[0xff, 0xee, 0, 14][..], b"Adobe", &[0, 100, 0, 0, 0, 0, transform]].concat();
        [&COLOUR[..2], &marker, &COLOUR[2..]].concat()
    };
    let plain = baseline(COLOUR).unwrap();
    // 1 is YCbCr, which the baseline decoder converts; others are RGB, CMYK and YCCK.
    assert!(baseline(&with_marker(1)).unwrap() == plain);
    assert!(baseline(&with_marker(0)).is_none() && baseline(&with_marker(2)).is_none());
}

#[test]
fn end_markers_are_searched_from_the_header_of_the_first_scan() {
    // A thumbnail with an end marker, and a fill byte before the marker of the scan.
    let headers = [0xff, 0xd8, 0xff, 0xe1, 0, 6, 0xff, 0xd9, 0, 0, 0xff];
    let scan = [0xff, 0xda, 0, 3, 1, 0xff, 0, 0x12, 0x34, 0xff, 0xd9];
    assert_eq!(after_headers(&[&headers[..], &scan].concat()), scan);
    assert_eq!(after_headers(&headers[..8]), [0u8; 0]);
}
