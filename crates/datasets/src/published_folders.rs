//! Published datasets that are folders: photos of flowers, movie reviews of IMDB.

use crate::catalog::{FLOWERS, IMDB};
use crate::data_dir::DataDir;
use crate::{FolderOptions, SentenceOptions, TrainingData, folder, sentences};
use systole_base::Result;

/// Loads the photos of flowers in five classes, which are downloaded if they are not found.
///
/// # Errors
/// See [`fetch`](crate::fetch) and [`folder`](crate::folder).
pub fn flowers(dir: impl Into<DataDir>, options: &FolderOptions) -> Result<TrainingData> {
    folder(FLOWERS.folder_of(&dir.into())?, options)
}

/// Loads the movie reviews of IMDB, positive or negative, which are downloaded if they are not found.
///
/// # Errors
/// See [`fetch`](crate::fetch) and [`sentences`](crate::sentences).
pub fn imdb(dir: impl Into<DataDir>, options: &SentenceOptions) -> Result<TrainingData> {
    sentences(IMDB.folder_of(&dir.into())?, options)
}
