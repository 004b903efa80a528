//! Generates Colab and Kaggle notebooks that install and run the program on the notebook's machine.

use super::chips::RequestedChips;
use super::generated_file::GeneratedFile;
use super::job::CloudJob;
use serde_json::{Value, json};
use systole_data::shell_quoted as quoted;
use systole_ir::{Result, err};

/// A notebook service.
struct NotebookService {
    name: &'static str,
    /// Available hardware, as of November 2026.
    has: &'static [&'static str],
    /// Menu path that selects the hardware.
    how: &'static str,
    /// Settings for the storage location of the run.
    home: &'static str,
    /// Cell that sets up the storage of the run.
    keep: &'static str,
}

static COLAB: NotebookService = NotebookService {
    name: "colab",
    has: &["v5e-1", "v6e-1", "t4", "l4", "a100"],
    how: "*Runtime → Change runtime type*",
    home: "DRIVE = '/content/drive'  # where your Drive is mounted\n",
    keep: include_str!("drive.py"),
};

static KAGGLE: NotebookService = NotebookService {
    name: "kaggle",
    has: &["v5e-8", "p100", "2*t4"],
    how: "*Settings → Accelerator*",
    home: "KAGGLE = '/kaggle'  # inputs and outputs of a notebook\n",
    keep: include_str!("kaggle.py"),
};

pub(super) fn colab(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let text = COLAB.notebook(job)?;
    Ok(vec![GeneratedFile::new("colab.ipynb", "the notebook: File → Upload notebook", text)])
}

pub(super) fn kaggle(job: &CloudJob) -> Result<Vec<GeneratedFile>> {
    let text = KAGGLE.notebook(job)?;
    let is_tpu = matches!(job.chips, RequestedChips::Tpu(..));
    let metadata = json!({
        "id": format!("USER/{}", job.name),
        "title": job.name,
        "code_file": "kaggle.ipynb",
        "language": "python",
        "kernel_type": "notebook",
        "is_private": true,
        "enable_gpu": !is_tpu,
        "enable_tpu": is_tpu,
        "enable_internet": true,
        "dataset_sources": [],
        "kernel_sources": [],
    });
    let metadata = serde_json::to_string_pretty(&metadata).unwrap_or_default() + "\n";
    Ok(vec![
        GeneratedFile::new("kaggle.ipynb", "the notebook", text),
        GeneratedFile::new(
            "kernel-metadata.json",
            "for kaggle kernels push; replace USER by your user name",
            metadata,
        ),
    ])
}

impl NotebookService {
    fn notebook(&self, job: &CloudJob) -> Result<String> {
        // Slice name as used by the services.
        let title = job.chips.title().replace("v5litepod", "v5e");
        if !self.has.contains(&title.as_str()) {
            let e = err!(Config, "{} does not offer {title}", self.name).at("--slice");
            let why = "a notebook runs on one machine with the hardware of the service";
            return Err(e.because(why).hint_command(format!(
                "use one of these chips: {}; for larger slices use `systole cloud tpu-vm`",
                self.has.join(", ")
            )));
        }
        let kind = if matches!(job.chips, RequestedChips::Tpu(..)) { "TPU" } else { "GPU" };
        let about = format!(
            "# Training on {title}, or on the available hardware\n\nFirst {}: {title}. Then run the cells from the top. A failing cell prints what to do. \
             Every cell also runs on a CPU; lines that need a {kind} are marked with it.\n\n\
             Written by `systole cloud {}`. It has not been run on the service: see docs/guide/cloud.md for what was checked.",
            self.how, self.name
        );
        let named =
            |text: &str| text.replace("@NAME@", &job.name).replace("@HOW@", &self.how.replace('*', ""));
        let mut cells = vec![markdown(&about), self.parameters(job), code(include_str!("install.py"))];
        cells.extend(job.toml().map(|text| code(&format!("%%writefile {}\n{text}", job.model()))));
        let rest = [
            include_str!("devices.py"),
            self.keep,
            include_str!("train.py"),
            include_str!("plot.py"),
            include_str!("evaluate.py"),
            include_str!("predict.py"),
            include_str!("kept.py"),
        ];
        cells.extend(rest.map(|text| code(&named(text))));
        let mut metadata = json!({
            "accelerator": kind,
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        });
        if let (RequestedChips::Gpu { kind, .. }, "colab") = (&job.chips, self.name) {
            metadata["colab"] = json!({"gpuType": kind.to_uppercase()});
        }
        let notebook = json!({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5});
        Ok(serde_json::to_string_pretty(&notebook).unwrap_or_default() + "\n")
    }

    /// First code cell, with the tag `parameters`, by which notebook runners find the settings.
    fn parameters(&self, job: &CloudJob) -> Value {
        // Without a model name, glyphs replaces Fashion-MNIST if that cannot be downloaded.
        let model = if job.model() == "fashion-mnist" { String::new() } else { quoted(job.model()) };
        let words: Vec<String> = job.arguments().iter().map(quoted).collect();
        let text = format!(
            "{}MODEL = {}  # preset or TOML file; empty: Fashion-MNIST, or synthetic glyphs if it cannot be found or downloaded\n\
             ARGUMENTS = {}  # additional arguments of `systole train`\n{}",
            include_str!("parameters.py"),
            literal(&model),
            literal(&words.join(" ")),
            self.home
        );
        let mut cell = code(&text);
        cell["metadata"] = json!({"tags": ["parameters"]});
        cell
    }
}

/// Formats a Python string literal.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn markdown(text: &str) -> Value {
    json!({"cell_type": "markdown", "id": id(text), "metadata": {}, "source": lines(text)})
}

fn code(text: &str) -> Value {
    json!({"cell_type": "code", "execution_count": null, "id": id(text), "metadata": {}, "outputs": [], "source": lines(text)})
}

/// Cell id that depends only on the cell's text.
fn id(text: &str) -> String {
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

/// Splits text into the lines of a notebook cell: each keeps its line feed, except the last.
fn lines(text: &str) -> Vec<String> {
    text.trim_end().split_inclusive('\n').map(String::from).collect()
}
