//! Object store access: reads `gs://BUCKET/KEY` and `s3://BUCKET/KEY` as files.
//!
//! Uses the crate `object_store` (feature `object-stores`).
//!
//! Credentials come from the same environment variables as for the clouds' own tools (table in `docs/guide/data.md`),
//! or from [`configure`]. Objects are read in ranges, with read-ahead; a position is a byte offset.

mod http_connector;
mod object_reader;

pub use http_connector::RetryPolicy;
pub use object_reader::ObjectReader;

use crate::directory_entry::DirectoryEntry;
use crate::mutex::lock;
use http_connector::{HttpConnection, RequestSigner, block_on};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use systole_base::knobs::variable;
use systole_base::{Error, Result, err};

/// Bucket with its client.
struct Bucket {
    /// `gs://BUCKET`.
    name: String,
    store: Box<dyn ObjectStore>,
}

/// Known buckets, so that access tokens are requested only once.
static BUCKETS: Mutex<BTreeMap<String, Arc<Bucket>>> = Mutex::new(BTreeMap::new());

/// Configures access to an object-store bucket for this process, with settings named as in the crate `object_store`
/// (`endpoint`, `region`, `access_key_id`, `skip_signature`; `base_url`, `bearer_token`). They override the
/// environment.
///
/// ```no_run
/// use systole_data::objects::{RetryPolicy, configure};
/// let settings = [("endpoint", "http://127.0.0.1:9000"), ("skip_signature", "true")];
/// configure("s3://pictures", settings, RetryPolicy::default())?;
/// # Ok::<(), systole_base::Error>(())
/// ```
///
/// # Errors
/// If the bucket is invalid, or a setting is unknown.
pub fn configure<'a>(
    bucket: &str,
    settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    patience: RetryPolicy,
) -> Result<()> {
    let (bucket, _) = split(bucket)?;
    let made = Bucket::new(bucket, &settings.into_iter().collect::<Vec<_>>(), patience)?;
    lock(&BUCKETS).insert(bucket.to_string(), Arc::new(made));
    Ok(())
}

/// Splits a path into `gs://BUCKET` and the key.
fn split(path: &str) -> Result<(&str, &str)> {
    let scheme = path.find("://").map_or(0, |i| i + 3);
    let end = path[scheme..].find('/').map_or(path.len(), |i| scheme + i);
    let (bucket, key) = (&path[..end], path[end..].trim_matches('/'));
    match &bucket[..scheme] {
        "gs://" | "s3://" if scheme < end => Ok((bucket, key)),
        _ => Err(err!(Config, "`{path}` has no bucket name")
            .hint("use a path such as gs://BUCKET/KEY or s3://BUCKET/KEY")),
    }
}

impl Bucket {
    /// Returns the bucket of a path, and the key.
    fn of(path: &Path) -> Result<(Arc<Bucket>, object_store::path::Path)> {
        let text = path.to_str().unwrap_or_default();
        let (name, key) = split(text)?;
        let key = object_store::path::Path::parse(key).map_err(|e| {
            let e = err!(Config, "`{text}` is not a valid object path").because(e.to_string());
            e.hint("remove empty components, `.` and `..`")
        })?;
        let mut known = lock(&BUCKETS);
        if let Some(bucket) = known.get(name) {
            return Ok((bucket.clone(), key));
        }
        let bucket = Arc::new(Bucket::new(name, &[], RetryPolicy::default())?);
        known.insert(name.to_string(), bucket.clone());
        Ok((bucket, key))
    }

    fn new(name: &str, settings: &[(&str, &str)], patience: RetryPolicy) -> Result<Bucket> {
        let store = match name.split_at(5) {
            ("gs://", bucket) => google(bucket, settings, patience),
            (_, bucket) => amazon(bucket, settings, patience),
        };
        let store = store.map_err(|e| {
            let error = err!(Config, "cannot reach {name}").because(chain(&e));
            error.hint(hint_for_credentials(name))
        })?;
        Ok(Bucket { name: name.to_string(), store })
    }

    /// Returns the error for a failed operation on a key.
    fn explain(&self, what: &str, key: &str, place: Option<String>, e: &object_store::Error) -> io::Error {
        let error = err!(Io, "cannot {what} {}/{key}", self.name);
        let error = place.into_iter().fold(error, Error::at);
        io::Error::other(match e {
            object_store::Error::NotFound { .. } => error
                .because("the object or the bucket does not exist (404)")
                .hint(format!("list the existing objects: {}", self.listing())),
            object_store::Error::PermissionDenied { .. } => {
                error.because("the store denies access (403)").hint(hint_for_credentials(&self.name))
            }
            object_store::Error::Unauthenticated { .. } => error
                .because("the store does not accept the credentials (401)")
                .hint(hint_for_credentials(&self.name)),
            object_store::Error::Precondition { .. } => error
                .because("the object in the object store changed while it was being read (412)")
                .hint("restore the previous object, or start a new run with the current object"),
            other => {
                let why = chain(other);
                // The metadata servers of cloud machines are the fallback for credentials; the error types of denied
                // listings vary.
                let unknown = ["169.254.169.254", "metadata", "status code: 401", "status code: 403"];
                let hint = match unknown.iter().any(|m| why.contains(m)) {
                    true => hint_for_credentials(&self.name),
                    false => "check the network; the same command resumes from the last backup".into(),
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
            "log in with `gcloud auth application-default login`, or set CLOUDSDK_AUTH_ACCESS_TOKEN to the output of \
            `gcloud auth print-access-token`; set GOOGLE_SKIP_SIGNATURE=true for public buckets"
                .into()
        }
        false => "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_PROFILE; \
            set AWS_SKIP_SIGNATURE=true for public buckets"
            .into(),
    }
}

/// Formats an error and its sources without repetitions.
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

/// Disables the crate's retries: [`HttpConnection`] retries itself.
fn never_again() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

type ObjectStoreRef = object_store::Result<Box<dyn ObjectStore>>;

fn google(bucket: &str, settings: &[(&str, &str)], patience: RetryPolicy) -> ObjectStoreRef {
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
    let store = builder
        .with_http_connector(HttpConnection(patience))
        .with_crypto_provider(Arc::new(RequestSigner))
        .build()?;
    Ok(Box::new(store))
}

fn amazon(bucket: &str, settings: &[(&str, &str)], patience: RetryPolicy) -> ObjectStoreRef {
    let mut builder = AmazonS3Builder::from_env();
    let given = |b: &AmazonS3Builder, key| b.get_config_value(&key).is_some();
    let is_settled = variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some();
    for (name, value) in if is_settled { Vec::new() } else { profile() } {
        // `from_env` reads those in the environment, which take precedence.
        let Ok(key) = name.parse::<AmazonS3ConfigKey>() else { continue };
        if !given(&builder, key) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in settings {
        builder = builder.with_config(name.parse::<AmazonS3ConfigKey>()?, *value);
    }
    let builder = builder.with_bucket_name(bucket).with_retry(never_again()).with_allow_http(true);
    let store = builder
        .with_http_connector(HttpConnection(patience))
        .with_crypto_provider(Arc::new(RequestSigner))
        .build()?;
    Ok(Box::new(store))
}

/// Returns the settings that `aws configure` stored for the current profile: keys, token and region.
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

/// Returns `name = value` of one section; the file `config` names it `[profile NAME]`.
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

/// Lists the keys below a directory's path, up to the next `/`.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let (bucket, key) = Bucket::of(dir).map_err(io::Error::other)?;
    let prefix = (!key.as_ref().is_empty()).then_some(&key);
    let listed = block_on(bucket.store.list_with_delimiter(prefix));
    let listed = listed.map_err(|e| bucket.explain("list", key.as_ref(), None, &e))?;
    let entry = |key: &object_store::path::Path, is_dir| DirectoryEntry {
        path: format!("{}/{key}", bucket.name).into(),
        name: key.filename().unwrap_or_default().to_string(),
        is_dir,
        is_link: false,
    };
    let objects = listed.objects.iter().map(|o| entry(&o.location, false));
    Ok(listed.common_prefixes.iter().map(|p| entry(p, true)).chain(objects).collect())
}

/// Returns the size of an object in bytes; `None` if it does not exist, or the store does not report it.
pub(crate) fn size(path: &Path) -> Option<u64> {
    let (bucket, key) = Bucket::of(path).ok()?;
    // A store also answers for the bucket itself.
    let named = !key.as_ref().is_empty();
    named.then(|| block_on(bucket.store.head(&key)).ok())?.map(|meta| meta.size)
}

#[cfg(test)]
mod tests;
