//! Power-failure simulation: every possible disk state during a save holds either the old or the new file, complete.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};
use systole_ir::Literal;
use systole_nn::{FileSystem, ModelFile, write_atomically};

/// A file system call of a save.
#[derive(Clone, Debug, PartialEq)]
enum DiskCall {
    Create(PathBuf),
    Write(PathBuf, Vec<u8>),
    Truncate(PathBuf, u64),
    Sync(PathBuf),
    Rename(PathBuf, PathBuf),
    SyncDir,
    Remove(PathBuf),
}

/// Records calls without executing them.
#[derive(Default)]
struct Recorder(RefCell<Vec<DiskCall>>);

impl Recorder {
    fn note(&self, call: DiskCall) -> io::Result<()> {
        self.0.borrow_mut().push(call);
        Ok(())
    }
}

impl FileSystem for Recorder {
    type File = PathBuf;
    fn create(&self, path: &Path) -> io::Result<PathBuf> {
        self.note(DiskCall::Create(path.into())).map(|()| path.into())
    }
    fn open(&self, path: &Path) -> io::Result<PathBuf> {
        self.create(path)
    }
    fn lock(&self, _: &PathBuf) -> Result<(), TryLockError> {
        Ok(())
    }
    fn write(&self, file: &mut PathBuf, bytes: &[u8]) -> io::Result<usize> {
        self.note(DiskCall::Write(file.clone(), bytes.into())).map(|()| bytes.len())
    }
    fn truncate(&self, file: &mut PathBuf, length: u64) -> io::Result<()> {
        self.note(DiskCall::Truncate(file.clone(), length))
    }
    fn sync(&self, file: &mut PathBuf) -> io::Result<()> {
        self.note(DiskCall::Sync(file.clone()))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(DiskCall::Rename(from.into(), to.into()))
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        self.note(DiskCall::SyncDir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note(DiskCall::Remove(path.into()))
    }
}

/// A file's bytes: those surely on disk, and all that were written.
#[derive(Clone, Default)]
struct Inode {
    durable: usize,
    bytes: Vec<u8>,
}

impl Inode {
    /// Returns the possible contents after a power failure: synced bytes plus half or all of the rest, or the length
    /// without the bytes.
    fn remains(&self) -> Vec<Vec<u8>> {
        let rest = self.bytes.len() - self.durable;
        let mut zeros = self.bytes[..self.durable].to_vec();
        zeros.resize(self.bytes.len(), 0);
        let mut all: Vec<Vec<u8>> =
            [0, rest / 2, rest].map(|n| self.bytes[..self.durable + n].to_vec()).into();
        all.push(zeros);
        all
    }
}

/// Returns what `path` may contain after a power failure following each call. Directory changes since the last sync may
/// have reached the disk in any combination; unsynced bytes may be partial.
fn after_every_power_cut(calls: &[DiskCall], path: &Path, old: &[u8]) -> Vec<Option<Vec<u8>>> {
    let mut found = Vec::new();
    for cut in 0..=calls.len() {
        let calls = &calls[..cut];
        let synced = calls.iter().rposition(|c| *c == DiskCall::SyncDir).map_or(0, |i| i + 1);
        let folder: Vec<usize> = (synced..cut)
            .filter(|&i| matches!(calls[i], DiskCall::Create(_) | DiskCall::Rename(..) | DiskCall::Remove(_)))
            .collect();
        for subset in 0..1u32 << folder.len() {
            let reached = |i: usize| {
                i < synced || folder.iter().position(|&f| f == i).is_some_and(|k| subset >> k & 1 == 1)
            };
            // Files by number, as a name may lose its file; names of the folder on the disk.
            let mut inodes = vec![Inode { durable: old.len(), bytes: old.to_vec() }];
            let mut now = BTreeMap::from([(path.to_path_buf(), 0)]);
            let mut disk = now.clone();
            for (i, call) in calls.iter().enumerate() {
                match call {
                    DiskCall::Create(p) => {
                        inodes.push(Inode::default());
                        now.insert(p.clone(), inodes.len() - 1);
                        reached(i).then(|| disk.insert(p.clone(), inodes.len() - 1));
                    }
                    DiskCall::Write(p, bytes) => inodes[now[p]].bytes.extend(bytes),
                    DiskCall::Sync(p) => inodes[now[p]].durable = inodes[now[p]].bytes.len(),
                    DiskCall::Rename(from, to) => {
                        let file = now.remove(from).unwrap();
                        now.insert(to.clone(), file);
                        if reached(i) {
                            disk.remove(from);
                            disk.insert(to.clone(), file);
                        }
                    }
                    DiskCall::Remove(p) => {
                        now.remove(p);
                        reached(i).then(|| disk.remove(p));
                    }
                    DiskCall::Truncate(p, length) => inodes[now[p]].bytes.truncate(*length as usize),
                    DiskCall::SyncDir => {}
                }
            }
            match disk.get(path) {
                Some(&file) => found.extend(inodes[file].remains().into_iter().map(Some)),
                None => found.push(None),
            }
        }
    }
    found
}

fn model(value: f32) -> ModelFile {
    let kernel = Literal::from_slice([4, 4], &[value; 16]).unwrap();
    let metadata = BTreeMap::from([("step".to_string(), value.to_string())]);
    ModelFile { tensors: vec![("weights/kernel".into(), kernel)], metadata }
}

fn bytes(file: &ModelFile) -> Vec<u8> {
    let disk = Recorder::default();
    file.save_with(&disk, Path::new("model")).unwrap();
    let writes = disk.0.into_inner().into_iter();
    writes.flat_map(|c| if let DiskCall::Write(_, b) = c { b } else { Vec::new() }).collect()
}

fn is_whole(found: &Option<Vec<u8>>, old: &ModelFile, new: &ModelFile) -> bool {
    let Some(found) = found else { return false };
    ModelFile::read(&mut &found[..], found.len() as u64).is_ok_and(|file| file == *old || file == *new)
}

#[test]
fn a_power_cut_at_any_call_leaves_the_old_model_or_the_new() {
    let (old, new) = (model(1.0), model(2.0));
    let disk = Recorder::default();
    new.save_with(&disk, Path::new("model")).unwrap();
    let calls = disk.0.into_inner();
    let found = after_every_power_cut(&calls, Path::new("model"), &bytes(&old));
    assert!(found.len() > 40 && found.iter().all(|f| is_whole(f, &old, &new)));
    assert!(found.iter().any(|f| *f == Some(bytes(&old))) && found.iter().any(|f| *f == Some(bytes(&new))));
    // When the save has returned, the new one is there whatever happens.
    let last = after_every_power_cut(&calls, Path::new("model"), &bytes(&old)).pop().unwrap();
    assert_eq!(last, Some(bytes(&new)));
}

#[test]
fn the_check_finds_saves_that_are_not_safe() {
    let (old, new) = (model(1.0), model(2.0));
    let disk = Recorder::default();
    new.save_with(&disk, Path::new("model")).unwrap();
    let safe = disk.0.into_inner();
    let fails = |calls: &[DiskCall]| {
        let found = after_every_power_cut(calls, Path::new("model"), &bytes(&old));
        found.iter().any(|f| !is_whole(f, &old, &new))
    };
    assert!(!fails(&safe));
    let without_sync: Vec<DiskCall> =
        safe.iter().filter(|c| !matches!(c, DiskCall::Sync(_))).cloned().collect();
    assert!(fails(&without_sync));
    let in_place = [
        DiskCall::Remove("model".into()),
        DiskCall::Create("model".into()),
        DiskCall::Write("model".into(), bytes(&new)),
        DiskCall::Sync("model".into()),
        DiskCall::SyncDir,
    ];
    assert!(fails(&in_place));
}

#[test]
fn other_files_are_written_the_same_way() {
    let disk = Recorder::default();
    write_atomically(&disk, Path::new("run.json"), &[b"{}"]).unwrap();
    let calls = disk.0.into_inner();
    let found = after_every_power_cut(&calls, Path::new("run.json"), b"[]");
    assert!(found.iter().all(|f| matches!(f.as_deref(), Some(b"{}" | b"[]"))));
}
