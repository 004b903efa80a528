//! Gzip and zlib streams. Without the feature `formats`, reading and writing them is an error.

/// Format of a compressed stream.
#[derive(Clone, Copy)]
pub(crate) enum StreamCompression {
    Gzip,
    Zlib,
}

#[cfg(feature = "formats")]
mod streams {
    use super::StreamCompression;
    use flate2::Compression;
    use flate2::read::{MultiGzDecoder, ZlibDecoder};
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::{self, Read, Write};

    /// Returns a reader of the decompressed bytes.
    pub(crate) fn decompress(
        kind: StreamCompression,
        input: impl Read + Send + 'static,
    ) -> Box<dyn Read + Send> {
        match kind {
            StreamCompression::Gzip => Box::new(MultiGzDecoder::new(input)),
            StreamCompression::Zlib => Box::new(ZlibDecoder::new(input)),
        }
    }

    /// Compressing writer.
    pub(crate) enum Compressor<W: Write> {
        Gzip(GzEncoder<W>),
        Zlib(ZlibEncoder<W>),
    }

    impl<W: Write> Compressor<W> {
        /// Creates a writer that compresses into `output`.
        pub(crate) fn new(kind: StreamCompression, output: W) -> io::Result<Compressor<W>> {
            let level = Compression::default();
            Ok(match kind {
                StreamCompression::Gzip => Compressor::Gzip(GzEncoder::new(output, level)),
                StreamCompression::Zlib => Compressor::Zlib(ZlibEncoder::new(output, level)),
            })
        }

        /// The stream to write to.
        pub(crate) fn stream(&mut self) -> &mut dyn Write {
            match self {
                Compressor::Gzip(w) => w,
                Compressor::Zlib(w) => w,
            }
        }

        /// Writes the end of the stream and returns the inner writer.
        pub(crate) fn finish(self) -> io::Result<W> {
            match self {
                Compressor::Gzip(w) => w.finish(),
                Compressor::Zlib(w) => w.finish(),
            }
        }
    }
}

#[cfg(not(feature = "formats"))]
mod streams {
    use super::StreamCompression;
    use std::convert::Infallible;
    use std::io::{self, Read, Write};
    use std::marker::PhantomData;

    struct Unsupported;

    fn unsupported() -> io::Error {
        io::Error::other(crate::missing_formats("compressed files"))
    }

    impl Read for Unsupported {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(unsupported())
        }
    }

    pub(crate) fn decompress(_: StreamCompression, _: impl Read + Send + 'static) -> Box<dyn Read + Send> {
        Box::new(Unsupported)
    }

    pub(crate) struct Compressor<W>(Infallible, PhantomData<W>);

    impl<W: Write> Compressor<W> {
        pub(crate) fn new(_: StreamCompression, _: W) -> io::Result<Compressor<W>> {
            Err(unsupported())
        }

        pub(crate) fn stream(&mut self) -> &mut dyn Write {
            match self.0 {}
        }

        pub(crate) fn finish(self) -> io::Result<W> {
            match self.0 {}
        }
    }
}

pub(crate) use streams::{Compressor, decompress};
