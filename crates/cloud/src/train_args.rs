//! Checks user arguments of `systole train`, the job name and the bucket before machines are paid for.

use super::chips::RequestedChips;
use std::path::Path;
use systole_ir::{Error, ErrorKind, Result, err};

/// Arguments of `systole train` that the platform sets.
const GIVEN: [&str; 2] = ["--out", "--device"];

/// Whether one of these options is among the arguments.
pub(super) fn names(words: &[String], options: &[&str]) -> bool {
    let is = |word: &String, option: &&str| {
        word.strip_prefix(*option).is_some_and(|end| end.is_empty() || end.starts_with('='))
    };
    words.iter().any(|word| options.iter().any(|option| is(word, option)))
}

/// Returns the last value of an option.
fn value<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().rposition(|word| word.split('=').next() == Some(option))?;
    words[at].split_once('=').map(|(_, value)| value).or_else(|| words.get(at + 1).map(String::as_str))
}

/// Rejects `systole train` arguments that the cloud platform sets.
///
/// # Errors
/// If one is given.
pub fn check_given(words: &[String]) -> Result<()> {
    match GIVEN.iter().find(|option| names(words, &[option])) {
        None => Ok(()),
        Some(option) => {
            let e = err!(Config, "{option} is set by the platform");
            Err(e.at("arguments after --").hint_command(format!("remove {option}; name the run with --name")))
        }
    }
}

/// Rejects a training batch size that does not divide over the devices.
///
/// # Errors
/// If it does not divide.
pub(super) fn check_batch(words: &[String], configured: Option<usize>, chips: &RequestedChips) -> Result<()> {
    let devices = chips.devices();
    let is_split_otherwise = names(words, &["--strategy", "--mesh", "--devices", "--set"]);
    let batch = value(words, "--batch-size").map_or(configured, |given| given.parse().ok());
    let Some(batch) =
        batch.filter(|n| *n > 0 && *n < 1 << 40 && !is_split_otherwise && !n.is_multiple_of(devices))
    else {
        return Ok(());
    };
    let next = batch.next_multiple_of(devices);
    Err(err!(
        Config,
        "the batch size {batch} does not divide over the {devices} devices of {}",
        chips.title()
    )
    .at("--slice")
    .hint_command(format!("add the arguments: -- --batch-size {next}")))
}

/// File name next to the generated files. Keys of Kubernetes ConfigMaps allow letters, digits and `-_.` only.
pub fn file_name(path: &str) -> String {
    let name =
        Path::new(path).file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}

/// Returns the name of a bucket without `gs://`.
///
/// # Errors
/// If the address is invalid.
pub(super) fn bucket(address: &str) -> Result<String> {
    let refused =
        |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).at("--bucket").hint_command(hint));
    let Some(name) = address.strip_prefix("gs://").map(|name| name.trim_end_matches('/')) else {
        return refused(format!("`{address}` is not a bucket address"), "write it as gs://NAME");
    };
    if name.contains('/') {
        return refused(
            format!("`{address}` is a folder in a bucket"),
            "name only the bucket; the run is stored in a folder of its own name",
        );
    }
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !(3..=63).contains(&name.len())
        || !name.chars().all(fits)
        || !name.starts_with(ends)
        || !name.ends_with(ends)
    {
        return refused(
            format!("`{name}` is not a valid bucket name"),
            "use 3 to 63 lowercase letters, digits, hyphens, dots and underscores: gs://my-runs",
        );
    }
    Ok(name.into())
}

/// Returns a valid name for Kubernetes and machines: lowercase letters, digits and hyphens.
///
/// # Errors
/// If the given name is invalid.
pub(super) fn name(given: Option<&str>, model: &str) -> Result<String> {
    let Some(name) = given else {
        let stem = model.trim_end_matches(".toml").to_lowercase();
        let word: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name: String = format!("systole-{}", word.trim_matches('-')).chars().take(MOST).collect();
        return Ok(name.trim_end_matches('-').into());
    };
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name =
        name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with('-') && name.chars().all(fits);
    if !is_name || name.len() > MOST {
        let e = err!(Config, "`{name}` is not a valid job name").at("--name");
        let why = format!(
            "a name starts with a lowercase letter and has at most {MOST} lowercase letters, digits and hyphens"
        );
        return Err(e.because(why).hint_command("choose another job name, such as my-run-2"));
    }
    Ok(name.into())
}

/// Derived names may have 63 characters.
const MOST: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_however_they_are_written() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        assert!(names(&words("--epochs 3 --out=x"), &["--out"]) && !names(&words("--outer x"), &["--out"]));
        assert_eq!(value(&words("--batch-size 8 --batch-size=16"), "--batch-size"), Some("16"));
        assert_eq!(value(&words("--batch-size 8"), "--batch-size"), Some("8"));
        assert_eq!(value(&words("--epochs 3"), "--batch-size"), None);
    }

    #[test]
    fn names_fit_kubernetes() {
        assert_eq!(name(None, "My Run_2.toml").unwrap(), "systole-my-run-2");
        assert_eq!(name(None, &"x".repeat(90)).unwrap().len(), MOST);
        for wrong in ["", "Big", "2x", "a_b", "a-", &"a".repeat(41)] {
            assert!(name(Some(wrong), "mlp").is_err(), "{wrong}");
        }
        assert_eq!(file_name("../My run.toml"), "My-run.toml");
        assert_eq!(bucket("gs://my-runs/").unwrap(), "my-runs");
        for wrong in ["my-runs", "s3://my-runs", "gs://a/b", "gs://", "gs://My", "gs://-ab"] {
            assert!(bucket(wrong).is_err(), "{wrong}");
        }
    }
}
