//! Test data generators: tables, images, image archives with tables of labels, and archives.

#![allow(dead_code, reason = "each test program uses a part")]

use super::Folder;
use systole_data::format::png;
use systole_ir::Literal;

/// Returns the two numbers of row `i` and whether the first is larger.
pub fn pair(i: usize) -> (f64, f64, usize) {
    let (a, b) = ((i * 37 % 100) as f64 / 100.0, (i * 61 % 97) as f64 / 97.0);
    (a, b, usize::from(a > b))
}

/// Formats [`pair`] as a CSV row `a,b,label`.
pub fn plain(i: usize) -> String {
    let (a, b, label) = pair(i);
    format!("{a},{b:.4},{label}")
}

/// Formats a CSV table from a header and rows.
pub fn table(header: &str, rows: usize, row: impl Fn(usize) -> String) -> String {
    header.to_string() + "\n" + &(0..rows).map(|i| row(i) + "\n").collect::<String>()
}

/// Encodes a PNG of 18 × 18 pixels whose values vary around `shade`.
pub fn picture(shade: u8, i: usize, alpha: Option<u8>) -> Vec<u8> {
    let c = if alpha.is_some() { 4 } else { 3 };
    let pixel = |p: usize| {
        let v = shade.wrapping_add((p * 7 + i * 3) as u8 % 40);
        [v, v / 2, 255 - v, alpha.unwrap_or(0)].into_iter().take(c)
    };
    let pixels: Vec<u8> = (0..18 * 18).flat_map(pixel).collect();
    png::to_bytes(&Literal::from_slice([18, 18, c], &pixels).unwrap()).unwrap()
}

/// Writes an image folder with the classes `cat` and `dog`, `n` images each.
pub fn album(f: &Folder, dir: &str, n: usize) {
    for (class, shade) in [("cat", 20), ("dog", 180)] {
        std::fs::create_dir_all(f.path(&format!("{dir}/{class}"))).unwrap();
        for i in 0..n {
            f.write(&format!("{dir}/{class}/{i}.png"), picture(shade, i, None));
        }
    }
}

/// Encodes a tar archive.
pub fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, data) in files {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        let size = format!("{:011o}", data.len());
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(size.as_bytes());
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..263].copy_from_slice(b"ustar\0");
        let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend(header);
        out.extend(data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}

/// Encodes a PNG of 18 × 18 pixels from the PNG bit depth, PNG color type, palette and row bytes.
pub fn png_of(depth: u8, colour: u8, palette: &[u8], row: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let raw: Vec<u8> = (0..18).flat_map(|y| std::iter::once(0).chain(row(y))).collect();
    let length = raw.len() as u16;
    let (a, b) = raw.iter().fold((1u32, 0u32), |(a, b), v| {
        let a = (a + u32::from(*v)) % 65521;
        (a, (b + a) % 65521)
    });
    // One stored (uncompressed) deflate block.
    let start = [&[0x78, 0x01, 1][..], &length.to_le_bytes(), &(!length).to_le_bytes()].concat();
    let packed = [&start[..], &raw, &(b << 16 | a).to_be_bytes()].concat();
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let body = [&name[..], data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &body, &crc(&body).to_be_bytes()].concat()
    };
    let header = [&18u32.to_be_bytes()[..], &18u32.to_be_bytes(), &[depth, colour, 0, 0, 0]].concat();
    let palette = if palette.is_empty() { Vec::new() } else { chunk(b"PLTE", palette) };
    [
        &b"\x89PNG\r\n\x1a\n"[..],
        &chunk(b"IHDR", &header),
        &palette,
        &chunk(b"IDAT", &packed),
        &chunk(b"IEND", &[]),
    ]
    .concat()
}

fn crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    })
}

/// Encodes a JPEG with an EXIF orientation.
pub fn photo(orientation: u16) -> Vec<u8> {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/data/fixtures/gradient.jpg");
    let jpeg = std::fs::read(fixture).unwrap();
    let entry = [&[0x12, 0x01, 3, 0, 1, 0, 0, 0][..], &orientation.to_le_bytes(), &[0, 0]].concat();
    let block = [&b"Exif\0\0II*\0"[..], &8u32.to_le_bytes(), &1u16.to_le_bytes(), &entry, &[0; 4]].concat();
    let length = (block.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &block, &jpeg[2..]].concat()
}

/// Names and contents of images in many formats: RGB, transparent, 16-bit, palette, rotated by EXIF, gray, BMP.
pub fn odd_pictures(shade: u8) -> Vec<(&'static str, Vec<u8>)> {
    let at = |x: usize, y: usize| shade.wrapping_add((x * 7 + y * 3) as u8);
    let deep = |y: usize| (0..18).flat_map(|x| [at(x, y), 7, at(y, x), 0, 9, 200]).collect();
    let grey = |y: usize| (0..18).map(|x| at(x, y)).collect();
    let colours: Vec<u8> = (0..=255u8).flat_map(|i| [i, 255 - i, shade]).collect();
    let rows: Vec<u8> =
        (0..18).flat_map(|y| (0..18).flat_map(move |x| [at(x, y), 90, shade]).chain([0, 0])).collect();
    let mut bmp =
        [&b"BM"[..], &(54 + rows.len() as u32).to_le_bytes(), &[0; 4], &54u32.to_le_bytes()].concat();
    bmp.extend(
        [&40u32.to_le_bytes()[..], &18u32.to_le_bytes(), &18u32.to_le_bytes(), &[1, 0, 24, 0]].concat(),
    );
    bmp.extend([0; 24]);
    bmp.extend(rows);
    vec![
        ("0.png", picture(shade, 0, None)),
        ("1.png", picture(shade, 1, Some(90))),
        ("2.png", png_of(16, 2, &[], deep)),
        ("3.png", png_of(8, 3, &colours, grey)),
        ("4.jpg", photo(6)),
        ("5.png", png_of(8, 0, &[], grey)),
        ("6.bmp", bmp),
    ]
}

/// Encodes a ZIP archive of stored arrays, as `numpy.savez` writes it.
pub fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in arrays {
        let name = format!("{name}.npy");
        let sizes = [crc(data), data.len() as u32, data.len() as u32].map(u32::to_le_bytes).concat();
        let common =
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sizes, &(name.len() as u16).to_le_bytes(), &[0, 0]]
                .concat();
        let offset = (out.len() as u32).to_le_bytes();
        directory.extend([&b"PK\x01\x02\x14\0"[..], &common, &[0; 10], &offset, name.as_bytes()].concat());
        out.extend([&b"PK\x03\x04"[..], &common, name.as_bytes(), data].concat());
    }
    let (count, size, at) = (arrays.len() as u16, directory.len() as u32, out.len() as u32);
    let counts = [[0, 0], [0, 0], count.to_le_bytes(), count.to_le_bytes()].concat();
    out.extend(directory);
    out.extend([&b"PK\x05\x06"[..], &counts, &size.to_le_bytes(), &at.to_le_bytes(), &[0, 0]].concat());
    out
}

/// Encodes strings as a NumPy array of type `<U3`.
pub fn texts(all: &[&str]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<U3', 'fortran_order': False, 'shape': ({},), }}", all.len());
    header.push_str(&" ".repeat(63 - (10 + header.len()) % 64));
    header.push('\n');
    let one = |text: &str| -> Vec<u8> {
        (0..3).flat_map(|k| u32::from(text.as_bytes().get(k).copied().unwrap_or(0)).to_le_bytes()).collect()
    };
    let data: Vec<u8> = all.iter().flat_map(|text| one(text)).collect();
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &data].concat()
}
