//! GIF decoder: first frame to `ui8[H, W, 3]`, or `ui8[H, W, 4]` with transparency.

use super::size_limit::{is_too_large, too_large, unreadable};
use gif::{ColorOutput, DecodeOptions, Decoder, MemoryLimit};
use systole_base::{Literal, Result, ensure};

fn open<'a>(name: &str, bytes: &'a [u8]) -> Result<Decoder<&'a [u8]>> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    // The size is checked before decoding.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let decoder = options.read_info(bytes).map_err(|e| unreadable(name, e.to_string()))?;
    let (h, w) = (usize::from(decoder.height()), usize::from(decoder.width()));
    if h * w == 0 || is_too_large(h * w * 4) {
        return Err(unreadable(name, format!("{w} × {h} pixels: {}", too_large())));
    }
    Ok(decoder)
}

/// Decodes the first frame of a GIF onto its full canvas.
///
/// # Errors
/// If it is damaged, truncated or too large.
pub(super) fn from_bytes(name: &str, bytes: &[u8]) -> Result<Literal> {
    let mut decoder = open(name, bytes)?;
    let (height, width) = (usize::from(decoder.height()), usize::from(decoder.width()));
    let first = match decoder.next_frame_info() {
        Ok(Some(frame)) => [frame.left, frame.top, frame.width, frame.height].map(usize::from),
        Ok(None) => return Err(unreadable(name, "it has no frame")),
        Err(e) => return Err(unreadable(name, e.to_string())),
    };
    let [left, top, w, h] = first;
    ensure!(!is_too_large(w * h * 4), unreadable(name, too_large()));
    let mut pixels = vec![0; w * h * 4];
    decoder.read_into_buffer(&mut pixels).map_err(|e| unreadable(name, e.to_string()))?;
    let mut ground = vec![0u8; width * height * 4];
    for (y, row) in pixels.chunks_exact((w * 4).max(1)).enumerate().take(height.saturating_sub(top)) {
        let (from, n) = (((top + y) * width + left) * 4, w.min(width.saturating_sub(left)) * 4);
        if let Some(to) = ground.get_mut(from..from + n) {
            to.copy_from_slice(&row[..n]);
        }
    }
    let (whole, _) = ground.as_chunks::<4>();
    match whole.iter().all(|p| p[3] == 255) {
        true => {
            let colours: Vec<u8> = whole.iter().flat_map(|p| [p[0], p[1], p[2]]).collect();
            Literal::from_slice([height, width, 3], &colours)
        }
        false => Literal::from_slice([height, width, 4], &ground),
    }
}

/// Returns height, width and channels; transparency is known only after decoding.
pub(super) fn size(name: &str, bytes: &[u8]) -> Result<[usize; 3]> {
    let decoder = open(name, bytes)?;
    Ok([decoder.height().into(), decoder.width().into(), 3])
}

#[cfg(test)]
mod tests {
    use crate::format::any_format;

    fn animated() -> Vec<u8> {
        let mut bytes = Vec::new();
        let palette = [200, 10, 10, 10, 200, 10];
        let mut encoder = gif::Encoder::new(&mut bytes, 3, 2, &palette).unwrap();
        for (value, left) in [(0, 0), (1, 1)] {
            let frame =
                gif::Frame { width: 2, height: 2, left, buffer: vec![value; 4].into(), ..Default::default() };
            encoder.write_frame(&frame).unwrap();
        }
        drop(encoder);
        bytes
    }

    #[test]
    fn the_first_picture_of_a_gif_is_read_on_its_ground() {
        let bytes = animated();
        assert!(any_format::is_picture(&bytes));
        let x = any_format::from_bytes("a.gif", &bytes).unwrap();
        assert_eq!(x.shape().dims(), [2, 3, 4], "the third column is transparent");
        assert_eq!(x.bytes()[..12], [200, 10, 10, 255, 200, 10, 10, 255, 0, 0, 0, 0]);
        assert_eq!(any_format::size_of_bytes("a.gif", &bytes).unwrap()[..2], [2, 3]);
        for cut in [8, 13, 20, bytes.len() / 2] {
            let e = any_format::from_bytes("cut.gif", &bytes[..cut]).unwrap_err().to_string();
            assert!(e.contains("cut.gif"), "{e}");
        }
    }
}
