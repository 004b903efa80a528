//! MelSpectrogram layer: mel-scaled spectrogram (short-time Fourier transform) of audio.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};
use std::f64::consts::PI;
use systole_ir::Literal;
use systole_ir::op::Convolution;

arguments! {
    /// `x: T[…, samples] → T[…, num_mel_bins, frames]`: mel-scaled spectrogram, in decibels by default.
    ///
    /// Frames of `fft_length` samples, every `sequence_stride`, from audio that is reflected by half a frame at both ends.
    /// Magnitudes to the power of `mag_exp` are summed by triangular filters on the HTK mel scale. With `power_to_db`, values
    /// below the maximum of the whole batch − `top_db` are raised to it, as in Keras. Mel scale: O'Shaughnessy 1987.
    pub struct MelSpectrogram {
        /// Samples of a Fourier transform. Default: 2048.
        pub fft_length: usize = 2048,
        /// Samples between the starts of two frames. Default: 512.
        pub sequence_stride: usize = 512,
        /// Samples of the window, at most `fft_length`. Default: `fft_length`.
        pub sequence_length: Option<usize> = None,
        /// Window: "hann" or "hamming" (periodic). Default: "hann".
        pub window: SpectrogramWindow = SpectrogramWindow::Hann,
        /// Samples per second. Default: 16000.
        pub sampling_rate: f64 = 16000.0,
        /// Number of mel filters. Default: 128.
        pub num_mel_bins: usize = 128,
        /// Lower edge of the first filter in Hz. Default: 20.
        pub min_freq: f64 = 20.0,
        /// Upper edge of the last filter in Hz. Default: half the sampling rate.
        pub max_freq: Option<f64> = None,
        /// Whether values are converted to decibels. Default: true.
        pub power_to_db: bool = true,
        /// Range of decibels below the maximum. Default: 80.
        pub top_db: f64 = 80.0,
        /// Exponent of the magnitudes. Default: 2.
        pub mag_exp: f64 = 2.0,
        /// Lower bound of values that are converted to decibels. Default: 1e-10.
        pub min_power: f64 = 1e-10,
        /// Value of 0 dB. Default: 1.
        pub ref_power: f64 = 1.0,
    }
}

/// Window function of a spectrogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpectrogramWindow {
    /// Hann: ½ − ½·cos.
    #[default]
    Hann,
    /// Hamming: 0.54 − 0.46·cos.
    Hamming,
}

impl MelSpectrogram {
    fn length(&self) -> usize {
        self.sequence_length.unwrap_or(self.fft_length)
    }

    fn bins(&self) -> usize {
        self.fft_length / 2 + 1
    }

    /// Fourier transform of a frame as a convolution kernel: `f32[fft_length, 1, 2·bins]`, real and imaginary parts.
    fn transform(&self) -> Result<Literal> {
        let (n, bins, length) = (self.fft_length, self.bins(), self.length());
        let left = (n - length) / 2;
        let (offset, swing) = match self.window {
            SpectrogramWindow::Hann => (0.5, 0.5),
            SpectrogramWindow::Hamming => (0.54, 0.46),
        };
        let mut table = vec![0f32; n * 2 * bins];
        for i in 0..length {
            let window = offset - swing * (2.0 * PI * i as f64 / length as f64).cos();
            for k in 0..bins {
                // The product of the indices modulo n keeps the angle small, hence exact.
                let angle = 2.0 * PI * ((k * (i + left)) % n) as f64 / n as f64;
                let at = (i + left) * 2 * bins + k;
                table[at] = (window * angle.cos()) as f32;
                table[at + bins] = (-window * angle.sin()) as f32;
            }
        }
        Literal::from_slice([n, 1, 2 * bins], &table)
    }

    /// Triangular filters: `f32[bins, num_mel_bins]`.
    fn filters(&self) -> Result<Literal> {
        let mel = |hertz: f64| 1127.0 * (1.0 + hertz / 700.0).ln();
        let (low, high) = (mel(self.min_freq), mel(self.max_freq.unwrap_or(self.sampling_rate / 2.0)));
        let edge = |i: usize| low + (high - low) * i as f64 / (self.num_mel_bins + 1) as f64;
        let mut table = vec![0f32; self.bins() * self.num_mel_bins];
        // HTK excludes the bin of frequency 0.
        for k in 1..self.bins() {
            let at = mel(self.sampling_rate / 2.0 * k as f64 / (self.bins() - 1) as f64);
            for m in 0..self.num_mel_bins {
                let (start, center, end) = (edge(m), edge(m + 1), edge(m + 2));
                let slope = ((at - start) / (center - start)).min((end - at) / (end - center));
                table[k * self.num_mel_bins + m] = slope.max(0.0) as f32;
            }
        }
        Literal::from_slice([self.bins(), self.num_mel_bins], &table)
    }

    fn to_decibels(&self, x: &Tensor) -> Tensor {
        let log10 = |v: f64| v.abs().max(self.min_power).log10();
        let floor = x.builder().scalar(x.dtype(), self.min_power);
        let logs =
            x.maximum(&floor.broadcast_in_dim(x.shape(), &[])).log() * (10.0 / std::f64::consts::LN_10);
        let logs = logs - 10.0 * log10(self.ref_power);
        let all: Vec<usize> = (0..x.rank()).collect();
        let lowest = logs.reduce_max(&all) - self.top_db;
        logs.maximum(&lowest.broadcast_in_dim(x.shape(), &[]))
    }
}

/// `x: T[B, n, 1] → T[B, n + 2·by, 1]`: mirrors the ends, without repeating the first and last element.
fn reflected(x: &Tensor, by: usize) -> Tensor {
    let n = x.dim(1);
    let (start, end) = (x.slice_dim(1, 1, by + 1), x.slice_dim(1, n - 1 - by, n - 1));
    Tensor::concatenate(&[&start.reverse(&[1]), x, &end.reverse(&[1])], 1)
}

impl Arguments for MelSpectrogram {
    fn check(&self) -> Result<()> {
        let class = "MelSpectrogram";
        let least = [self.fft_length, self.sequence_stride, self.length(), self.num_mel_bins];
        ensure!(
            !least.contains(&0) && self.fft_length > 1,
            wrong(class, "fft_length of at least 2 and other lengths of at least 1", format!("{least:?}"))
        );
        ensure!(
            self.length() <= self.fft_length,
            wrong(
                class,
                &format!("sequence_length of at most its fft_length {}", self.fft_length),
                self.length()
            )
        );
        let (low, high) = (self.min_freq, self.max_freq.unwrap_or(self.sampling_rate / 2.0));
        ensure!(
            0.0 <= low && low < high,
            wrong(class, "0 ≤ min_freq < max_freq", format!("{low} and {high}"))
        );
        ensure!(self.min_power > 0.0, wrong(class, "min_power above 0", self.min_power));
        sized(class, "table", &[self.fft_length, 2 * self.bins()])
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let half = self.fft_length / 2;
        let samples = x.shape().last().copied().unwrap_or(0);
        if x.rank() < 2 || samples <= half {
            let needs = format!("audio of more than {half} samples [B, samples] (half its fft_length)");
            return Err(
                unfit("MelSpectrogram", &needs, x.ty()).hint("use longer audio, or a smaller fft_length")
            );
        }
        let g = x.builder().clone();
        let others = &x.shape()[..x.rank() - 1];
        let audio = x.convert(DType::F32).reshape([others.iter().product(), samples, 1]);
        let spec = Convolution::channels_last(&[self.sequence_stride], &[[0, 0]], &[1], 1, DType::F32);
        let frames = reflected(&audio, half).convolution(&g.constant(self.transform()?), spec);
        let part = |k: usize| frames.slice_dim(2, k * self.bins(), (k + 1) * self.bins());
        let power = part(0) * part(0) + part(1) * part(1);
        let magnitudes = match self.mag_exp {
            2.0 => power,
            1.0 => power.sqrt(),
            exponent => {
                let half = g.scalar(DType::F32, exponent / 2.0);
                power.power(&half.broadcast_in_dim(power.shape(), &[]))
            }
        };
        let mels = magnitudes.dot(&g.constant(self.filters()?));
        let mels = if self.power_to_db { self.to_decibels(&mels) } else { mels };
        let y = cast(cx, &mels.transpose(&[0, 2, 1]));
        Ok(y.reshape([others, &y.shape()[1..]].concat()))
    }
}

impl Layer for MelSpectrogram {
    named!("MelSpectrogram", one_input);
}

constructors!(LayerSpec:
    /// `x: T[…, samples] → T[…, num_mel_bins, frames]`: mel-scaled spectrogram. Arguments: [`MelSpectrogram`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::mel_spectrogram, Model};
    /// let output = Model::sequential([mel_spectrogram(80)]).output_for(&[TensorType::new(F32, [16000])])?;
    /// assert_eq!(output.shape.dims(), [80, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mel_spectrogram(num_mel_bins: usize) = MelSpectrogram { num_mel_bins, ..Default::default() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let small = MelSpectrogram { fft_length: 16, sequence_stride: 8, num_mel_bins: 3, ..Default::default() };
    let plain = MelSpectrogram { power_to_db: false, sequence_length: Some(12), ..small.clone() };
    vec![
        LayerSample::new(small.into(), &[2, 50], &[2, 3, 7], &[], Some(&[2, 8])),
        LayerSample::new(plain.into(), &[2, 3, 20], &[2, 3, 3, 3], &[], Some(&[20])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "mel_spectrogram", "class": "MelSpectrogram", "x_shape": [2, 60], "kwargs": {"fft_length": 16, "sequence_stride": 5, "sequence_length": 12, "num_mel_bins": 4, "power_to_db": false}},
    {"name": "mel_spectrogram_db", "class": "MelSpectrogram", "x_shape": [2, 60], "kwargs": {"fft_length": 16, "sequence_stride": 8, "num_mel_bins": 3, "window": "hamming", "mag_exp": 1.5, "min_freq": 50.0}}
]"#;
