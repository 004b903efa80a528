//! Objects of `gs://BUCKET/KEY` and `s3://BUCKET/KEY` as files, by the crate `object_store`; the feature `object-stores`.
//!
//! Credentials come from the environment as the clouds' own tools take them (the table in `docs/guide/data.md`), or from
//! [`configure`]. Objects are read in ranges, a next one while this one is used; a position is a byte offset.

mod http_connector;
mod object_reader;

pub use connect::Patience;
pub use reader::Object;

use crate::entry::Entry;
use crate::sync::lock;
use connect::{Crypto, Wire, block_on};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use systole_base::knobs::variable;
use systole_base::{Error, ErrorKind, Result};

/// A bucket and how it is reached.
struct Bucket {
    /// `gs://BUCKET`.
    name: String,
    store: Box<dyn ObjectStore>,
}

/// Those that are known by now: tokens are asked for once.
static BUCKETS: Mutex<BTreeMap<String, Arc<Bucket>>> = Mutex::new(BTreeMap::new());

/// Says how a bucket is reached, for this program: settings by the names of the crate `object_store` (`endpoint`, `region`,
/// `access_key_id`, `skip_signature`; `base_url`, `bearer_token`), stronger than the environment.
///
/// ```no_run
/// use systole_data::objects::{Patience, configure};
/// let settings = [("endpoint", "http://127.0.0.1:9000"), ("skip_signature", "true")];
/// configure("s3://pictures", settings, Patience::default())?;
/// # Ok::<(), systole_base::Error>(())
/// ```
///
/// # Errors
/// When the bucket is none, or a setting is not known.
pub fn configure<'a>(
    bucket: &str,
    settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    patience: Patience,
) -> Result<()> {
    let (bucket, _) = split(bucket)?;
    let made = Bucket::new(bucket, &settings.into_iter().collect::<Vec<_>>(), patience)?;
    lock(&BUCKETS).insert(bucket.to_string(), Arc::new(made));
    Ok(())
}

/// `gs://BUCKET` and the key.
fn split(path: &str) -> Result<(&str, &str)> {
    let scheme = path.find("://").map_or(0, |i| i + 3);
    let end = path[scheme..].find('/').map_or(path.len(), |i| scheme + i);
    let (bucket, key) = (&path[..end], path[end..].trim_matches('/'));
    match &bucket[..scheme] {
        "gs://" | "s3://" if scheme < end => Ok((bucket, key)),
        _ => Err(Error::new(ErrorKind::Config, format!("`{path}` names no bucket"))
            .hint("write gs://BUCKET/KEY or s3://BUCKET/KEY")),
    }
}

impl Bucket {
    /// The bucket that a path is in, and the key.
    fn of(path: &Path) -> Result<(Arc<Bucket>, object_store::path::Path)> {
        let text = path.to_str().unwrap_or_default();
        let (name, key) = split(text)?;
        let key = object_store::path::Path::parse(key).map_err(|e| {
            let e = Error::new(ErrorKind::Config, format!("`{text}` is no path of an object"))
                .because(e.to_string());
            e.hint("leave out empty parts, `.` and `..`")
        })?;
        let mut known = lock(&BUCKETS);
        if let Some(bucket) = known.get(name) {
            return Ok((bucket.clone(), key));
        }
        let bucket = Arc::new(Bucket::new(name, &[], Patience::default())?);
        known.insert(name.to_string(), bucket.clone());
        Ok((bucket, key))
    }

    fn new(name: &str, settings: &[(&str, &str)], patience: Patience) -> Result<Bucket> {
        let store = match name.split_at(5) {
            ("gs://", bucket) => google(bucket, settings, patience),
            (_, bucket) => amazon(bucket, settings, patience),
        };
        let store = store.map_err(|e| {
            let error = Error::new(ErrorKind::Config, format!("cannot reach {name}")).because(chain(&e));
            error.hint(hint_for_credentials(name))
        })?;
        Ok(Bucket { name: name.to_string(), store })
    }

    /// What went wrong with a key.
    fn explain(&self, what: &str, key: &str, place: Option<String>, e: &object_store::Error) -> io::Error {
        let error = Error::new(ErrorKind::Io, format!("cannot {what} {}/{key}", self.name));
        let error = place.into_iter().fold(error, Error::at);
        io::Error::other(match e {
            object_store::Error::NotFound { .. } => error
                .because("there is no such object, or no such bucket (404)")
                .hint(format!("look what is there: {}", self.listing())),
            object_store::Error::PermissionDenied { .. } => {
                error.because("the store refuses it (403)").hint(hint_for_credentials(&self.name))
            }
            object_store::Error::Unauthenticated { .. } => {
                error.because("the store does not know who asks (401)").hint(hint_for_credentials(&self.name))
            }
            object_store::Error::Precondition { .. } => error
                .because("the object changed while it was in use (412)")
                .hint("put it back, or start a new run with what is there now"),
            other => {
                let why = chain(other);
                // Servers that know who a machine is are asked where nothing else is set; refused lists are of no kind.
                let unknown = ["169.254.169.254", "metadata", "status code: 401", "status code: 403"];
                let hint = match unknown.iter().any(|m| why.contains(m)) {
                    true => hint_for_credentials(&self.name),
                    false => "check the network; the same command goes on from the last backup".into(),
                };
                error.because(why).hint(hint)
            }
        })
    }

    fn listing(&self) -> String {
        let tool = if self.name.starts_with("gs://") { "gcloud storage ls" } else { "aws s3 ls" };
        format!("{tool} {}/", self.name)
    }
}

fn hint_for_credentials(bucket: &str) -> String {
    match bucket.starts_with("gs://") {
        true => {
            "log in with `gcloud auth application-default login`, or set CLOUDSDK_AUTH_ACCESS_TOKEN to what \
            `gcloud auth print-access-token` prints; GOOGLE_SKIP_SIGNATURE=true reads public buckets"
                .into()
        }
        false => "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_PROFILE; \
            AWS_SKIP_SIGNATURE=true reads public buckets"
            .into(),
    }
}

/// All that an error says, without what it says twice.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(e) = next {
        let more = e.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        next = e.source();
    }
    text
}

/// [`Wire`] makes requests again itself.
fn never_again() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

type ObjectStoreRef = object_store::Result<Box<dyn ObjectStore>>;

fn google(bucket: &str, settings: &[(&str, &str)], patience: Patience) -> Store {
    let mut builder = GoogleCloudStorageBuilder::from_env();
    if let Some(token) = variable("CLOUDSDK_AUTH_ACCESS_TOKEN") {
        builder = builder.with_bearer_token(token);
    }
    if let Some(host) = variable("STORAGE_EMULATOR_HOST") {
        let url = if host.contains("://") { host } else { format!("http://{host}") };
        builder = builder.with_base_url(url.trim_end_matches('/')).with_skip_signature(true);
    }
    for (name, value) in settings {
        builder = builder.with_config(name.parse::<GoogleConfigKey>()?, *value);
    }
    let builder = builder.with_bucket_name(bucket).with_retry(never_again());
    let store = builder.with_http_connector(Wire(patience)).with_crypto_provider(Arc::new(Crypto)).build()?;
    Ok(Box::new(store))
}

fn amazon(bucket: &str, settings: &[(&str, &str)], patience: Patience) -> Store {
    let mut builder = AmazonS3Builder::from_env();
    let given = |b: &AmazonS3Builder, key| b.get_config_value(&key).is_some();
    let is_settled = variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some();
    for (name, value) in if is_settled { Vec::new() } else { profile() } {
        // `from_env` knows those that stand in the environment, which are stronger.
        let Ok(key) = name.parse::<AmazonS3ConfigKey>() else { continue };
        if !given(&builder, key) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in settings {
        builder = builder.with_config(name.parse::<AmazonS3ConfigKey>()?, *value);
    }
    let builder = builder.with_bucket_name(bucket).with_retry(never_again()).with_allow_http(true);
    let store = builder.with_http_connector(Wire(patience)).with_crypto_provider(Arc::new(Crypto)).build()?;
    Ok(Box::new(store))
}

/// What `aws configure` wrote down for the profile in use: keys, token and region.
fn profile() -> Vec<(String, String)> {
    let profile = variable("AWS_PROFILE").unwrap_or_else(|| "default".into());
    let files =
        [(variable("AWS_SHARED_CREDENTIALS_FILE"), "credentials"), (variable("AWS_CONFIG_FILE"), "config")];
    let read = |(told, usual): (Option<String>, &str)| {
        let path = told.or_else(|| Some(format!("{}/.aws/{usual}", variable("HOME")?)))?;
        Some(section(&std::fs::read_to_string(path).ok()?, &profile))
    };
    files.into_iter().filter_map(read).flatten().collect()
}

/// `name = value` of one section; the file `config` calls it `[profile NAME]`.
fn section(text: &str, profile: &str) -> Vec<(String, String)> {
    const READ: [&str; 4] = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region"];
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            inside = name.trim().trim_start_matches("profile ").trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| inside)
            && READ.contains(&name.trim())
        {
            found.push((name.trim().to_string(), value.trim().to_string()));
        }
    }
    found
}

/// What keys begin with a folder's path, up to the next `/`.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let (bucket, key) = Bucket::of(dir).map_err(io::Error::other)?;
    let prefix = (!key.as_ref().is_empty()).then_some(&key);
    let listed = block_on(bucket.store.list_with_delimiter(prefix));
    let listed = listed.map_err(|e| bucket.explain("list", key.as_ref(), None, &e))?;
    let entry = |key: &object_store::path::Path, is_dir| Entry {
        path: format!("{}/{key}", bucket.name).into(),
        name: key.filename().unwrap_or_default().to_string(),
        is_dir,
        is_link: false,
    };
    let objects = listed.objects.iter().map(|o| entry(&o.location, false));
    Ok(listed.common_prefixes.iter().map(|p| entry(p, true)).chain(objects).collect())
}

/// How many bytes an object has; `None` where there is none, or the store does not tell.
pub(crate) fn size(path: &Path) -> Option<u64> {
    let (bucket, key) = Bucket::of(path).ok()?;
    // A store answers for the bucket itself, too.
    let named = !key.as_ref().is_empty();
    named.then(|| block_on(bucket.store.head(&key)).ok())?.map(|meta| meta.size)
}

#[cfg(test)]
mod tests;
