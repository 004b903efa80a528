//! End-to-end tests of pretrained models by name (`hf:`, `keras:`, `torchvision:`) against servers on this machine; nothing
//! outside is contacted.

use crate::program::{Done, Folder, probabilities};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use systole_data::format::png;
use systole_datasets::sha256;
use systole_ir::Literal;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Hub with one repository, `sea/mpnet`: its description, its small files, and weights on another server, to which it
/// redirects.
struct Hub {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
    /// Requests to the server of the weights.
    at_cdn: Arc<Mutex<Vec<String>>>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights/hugging_face_predict").join(name)
}

/// Reads the head of a request.
fn request(stream: &TcpStream) -> String {
    let mut request = String::new();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap() > 0 {}
    request
}

/// Sends a file from the first byte that the request asks for, at most `most` bytes of it.
fn send(mut stream: &TcpStream, request: &str, content: &[u8], most: usize) {
    let range = |l: &str| l.strip_prefix("Range: bytes=")?.strip_suffix('-')?.parse().ok();
    let start: usize = request.lines().find_map(range).unwrap_or(0);
    let (total, left) = (content.len(), content.len() - start);
    let status = if start > 0 { "206 Partial Content" } else { "200 OK" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Range: bytes {start}-{}/{total}\r\nContent-Length: {left}\r\n\r\n",
        total - 1
    );
    // The client may have disconnected.
    let _ = stream.write_all(&[head.as_bytes(), &content[start..start + left.min(most)]].concat());
}

/// Serves each connection by `answer`: the request, and the number of earlier ones.
fn serve(answer: impl Fn(&TcpStream, &str, usize) + Send + 'static) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    thread::spawn(move || {
        for (i, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            let request = request(&stream);
            log.lock().unwrap().push(request.clone());
            answer(&stream, &request, i);
        }
    });
    (address, requests)
}

fn status(mut stream: &TcpStream, code: u16, location: &str) {
    let _ = write!(stream, "HTTP/1.1 {code} No\r\n{location}Content-Length: 0\r\n\r\n");
}

impl Hub {
    /// `weights`: what the other server sends instead of the weights. `config`: config.json.
    fn new(weights: Option<Vec<u8>>, config: Option<&str>) -> Hub {
        let path = fixture("mpnet/model.safetensors");
        let true_weights = fs::read(&path).unwrap();
        let (size, digest) = (true_weights.len(), sha256(&path).unwrap());
        let content = weights.unwrap_or(true_weights);
        // Cut off once.
        let (cdn, at_cdn) = serve(move |stream, request, i| {
            send(stream, request, &content, if i == 0 { 5000 } else { usize::MAX });
        });
        let config = config.map_or_else(|| fs::read(fixture("mpnet/config.json")).unwrap(), |c| c.into());
        let tokenizers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizer/encoders.json");
        let tokenizers: Value = serde_json::from_slice(&fs::read(tokenizers).unwrap()).unwrap();
        let tokenizer = tokenizers["tokenizers"]["mpnet"]["json"].to_string();
        let about = json!({
            "id": "sea/mpnet", "sha": COMMIT, "cardData": { "license": "apache-2.0" },
            "siblings": [
                { "rfilename": "config.json", "size": config.len() },
                { "rfilename": "README.md", "size": 3 },
                { "rfilename": "../../escape.json", "size": 3 },
                { "rfilename": "modules.json", "size": fs::metadata(fixture("mpnet/modules.json")).unwrap().len() },
                { "rfilename": "1_Pooling/config.json" },
                { "rfilename": "tokenizer.json", "size": tokenizer.len() },
                { "rfilename": "model.safetensors", "size": size, "lfs": { "sha256": digest, "size": size } },
                { "rfilename": "pytorch_model.bin", "size": 9, "lfs": { "sha256": digest, "size": 9 } },
            ],
        });
        let (address, requests) = serve(move |stream, request, _| {
            let path = request.split(' ').nth(1).unwrap_or_default();
            match path.strip_prefix(&format!("/sea/mpnet/resolve/{COMMIT}/")) {
                _ if path == "/api/models/sea/mpnet/revision/main?blobs=true" => {
                    send(stream, request, about.to_string().as_bytes(), usize::MAX);
                }
                _ if path.starts_with("/api/models/sea/closed") => status(stream, 401, ""),
                Some("tokenizer.json") => send(stream, request, tokenizer.as_bytes(), usize::MAX),
                Some("config.json") => send(stream, request, &config, usize::MAX),
                Some("model.safetensors") => {
                    status(stream, 302, &format!("Location: {cdn}/blob?signed\r\n"));
                }
                Some(name) => match fs::read(fixture("mpnet").join(name)) {
                    Ok(content) => send(stream, request, &content, usize::MAX),
                    Err(_) => status(stream, 404, ""),
                },
                None => status(stream, 404, ""),
            }
        });
        Hub { address, requests, at_cdn }
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// Runs a command with the cache in the folder, and this hub.
fn run(f: &Folder, hub: &str, args: &[&str]) -> Done {
    let mut command = f.command(args);
    command.env("SYSTOLE_CACHE", f.path("cache")).env("HF_ENDPOINT", hub).env("HF_TOKEN", "hf_secret");
    Done::of(command.output().unwrap(), args)
}

fn numbers(answer: &Value) -> Vec<f64> {
    answer["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

#[test]
fn a_repository_is_fetched_once_verified_resumed_and_read_like_its_folder() {
    let f = Folder::new("pretrained-hf");
    let hub = Hub::new(None, None);
    let import = ["import", "hf:sea/mpnet", "--out", "m.safetensors", "--json"];
    let o = run(&f, &hub.address, &import).ok().json();
    let folder = f.path(&format!("cache/models/hf/sea--mpnet/{COMMIT}"));
    assert_eq!(o["pretrained"]["revision"], COMMIT);
    assert_eq!(o["pretrained"]["license"], "apache-2.0");
    assert_eq!(o["pretrained"]["folder"], folder.display().to_string());
    let requests = hub.requests.lock().unwrap().clone();
    assert!(requests.iter().all(|r| r.contains("Authorization: Bearer hf_secret")), "{requests:?}");
    assert!(!requests.iter().any(|r| r.contains("README") || r.contains("pytorch_model")), "{requests:?}");
    let requests = hub.at_cdn.lock().unwrap().clone();
    assert!(requests[1].contains("Range: bytes=5000-"), "{requests:?}");
    assert!(!requests.iter().any(|r| r.contains("Authorization")), "{requests:?}");
    assert!(folder.join("1_Pooling/config.json").is_file() && !folder.join("README.md").exists());
    let record: Value = serde_json::from_slice(&fs::read(folder.join("fetched.json")).unwrap()).unwrap();
    assert_eq!(record["files"]["model.safetensors"]["digest_from"], "the server");
    assert_eq!(record["files"]["config.json"]["sha256"].as_str().unwrap().len(), 64);
    // Commands that take a model read it by name, without another request.
    let before = hub.count();
    run(&f, &hub.address, &["import", "hf:sea/mpnet", "--out", "again.safetensors", "--offline"]).ok();
    let text = ["--text", "a sea", "--embed", "--json"];
    let by_name =
        numbers(&run(&f, &hub.address, &[&["predict", "hf:sea/mpnet"], &text[..]].concat()).ok().json());
    let by_folder = folder.display().to_string();
    let by_folder =
        numbers(&run(&f, &hub.address, &[&["predict", &by_folder], &text[..]].concat()).ok().json());
    assert_eq!(by_name, by_folder);
    run(&f, &hub.address, &["summary", "hf:sea/mpnet@main"]).ok();
    run(&f, &hub.address, &["summary", &format!("hf:sea/mpnet@{COMMIT}")]).ok();
    assert_eq!(hub.count(), before);
    // A file that is lost is fetched again, and must be the recorded one.
    fs::remove_file(folder.join("modules.json")).unwrap();
    run(&f, &hub.address, &["summary", "hf:sea/mpnet"]).ok();
    assert!(folder.join("modules.json").is_file() && hub.count() > before);
}

#[test]
fn a_lying_hub_leaves_no_weights_and_a_language_model_is_refused_first() {
    let f = Folder::new("pretrained-lie");
    let size = fs::metadata(fixture("mpnet/model.safetensors")).unwrap().len() as usize;
    let hub = Hub::new(Some(vec![7; size]), None);
    let args = ["import", "hf:sea/mpnet", "--out", "m.safetensors"];
    let digest = sha256(&fixture("mpnet/model.safetensors")).unwrap();
    run(&f, &hub.address, &args).fails("data", &["`hf:sea/mpnet@main`", "model.safetensors", &digest]);
    let folder = f.path(&format!("cache/models/hf/sea--mpnet/{COMMIT}"));
    assert!(!folder.join("model.safetensors").exists() && !f.path("m.safetensors").exists());
    run(&f, &hub.address, &["summary", "hf:sea/mpnet", "--quiet"]).fails("data", &[&digest]);
    let f = Folder::new("pretrained-llm");
    let hub = Hub::new(None, Some("{\"model_type\": \"qwen2\"}"));
    run(&f, &hub.address, &args).fails("unsupported", &["`qwen2`"]);
    let requests = hub.requests.lock().unwrap().clone();
    assert!(!requests.iter().any(|r| r.contains("model.safetensors")), "{requests:?}");
}

#[test]
fn what_the_hub_does_not_give_is_named_with_its_address() {
    let f = Folder::new("pretrained-none");
    let hub = Hub::new(None, None);
    let import = |name: &str, more: &[&str]| {
        run(&f, &hub.address, &[&["import", name, "--out", "m.safetensors"], more].concat())
    };
    import("hf:sea/closed", &[]).fails("io", &["`hf:sea/closed@main`", "401", "HF_TOKEN"]);
    import("hf:sea/mpnet@v9", &[]).fails("io", &["`hf:sea/mpnet@v9`", "404", "sea/mpnet/tree/v9"]);
    let before = hub.count();
    import("hf:sea/mpnet", &["--offline"]).fails("io", &["`hf:sea/mpnet@main`", "sea/mpnet/tree/main"]);
    for wrong in ["hf:", "hf:a/b/c", "hf:../secret", "hf:a/b@../x", "hf:a b"] {
        import(wrong, &[]).fails("config", &["hf:OWNER/NAME"]);
    }
    assert_eq!(hub.count(), before);
    // Nobody listens at this address; and without TLS only this machine is trusted.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let mirror = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    import("hf:sea/mpnet", &["--mirror", &mirror]).fails("io", &["`hf:sea/mpnet@main`", &mirror]);
    import("hf:sea/mpnet", &["--mirror", "http://hub.invalid"])
        .fails("io", &["http://hub.invalid/sea/mpnet/tree/main"]);
    import("hf:sea/mpnet", &["--mirror", "hub"]).fails("usage", &["--mirror", "`hub`"]);
}

#[test]
fn weights_of_keras_and_torchvision_are_verified_by_the_publishers_digests() {
    let f = Folder::new("pretrained-keras");
    let names = [
        "`keras:ResNet50`",
        "https://storage.googleapis.com/tensorflow/keras-applications/resnet/resnet50_weights_tf_dim_ordering_tf_kernels.h5",
        "2cb95161c43110f7111970584f804107",
        &f.path("cache/models/keras/ResNet50-imagenet").display().to_string(),
    ];
    let out = ["--out", "m.safetensors"];
    let import = |name: &str, more: &[&str]| run(&f, "", &[&["import", name], &out[..], more].concat());
    import("keras:resnet50", &["--offline"]).fails("io", &names);
    let (lie, requests) = serve(|stream, request, _| send(stream, request, &[1; 999], usize::MAX));
    import("keras:ResNet50", &["--mirror", &lie]).fails("data", &[names[0], names[2], &lie]);
    assert!(!f.path("cache/models/keras").join("ResNet50-imagenet").exists());
    let e = import("torchvision:resnet50", &["--mirror", &lie]);
    e.fails("data", &["`torchvision:resnet50@IMAGENET1K_V2`", "resnet50-11ad3fa6.pth", "11ad3fa6"]);
    assert!(requests.lock().unwrap().iter().all(|r| !r.contains("Authorization")));
    import("torchvision:resnet50@IMAGENET1K_V1", &["--offline"]).fails("io", &["resnet50-0676ba61.pth"]);
    // A file that the user put there is verified.
    f.write("cache/models/torchvision/resnet18-IMAGENET1K_V1/resnet18-f37072fd.pth", "not the weights");
    import("torchvision:resnet18", &["--offline"]).fails("data", &["f37072fd"]);
    import("torchvision:resnet50@V1", &["--offline"]).fails("config", &["`V1`", "IMAGENET1K_V1"]);
    let e = import("keras:ResNet5", &["--offline"]).fails("config", &["`keras:ResNet5`"]);
    assert!(e.err.contains("did you mean `keras:ResNet50`"), "{}", e.err);
    let list = run(&f, "", &["import", "--list"]).ok().out;
    assert!(
        list.contains("keras:ConvNeXtTiny") && list.contains("torchvision:vgg16@IMAGENET1K_V1"),
        "{list}"
    );
}

/// A small ResNet with torchvision's names stands in for its weights: files in the cache are not verified again.
#[test]
fn weights_of_torchvision_are_predicted_with_and_fine_tuned_by_name() {
    let f = Folder::new("pretrained-torchvision");
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/weights/resnet.pt");
    f.write(
        "cache/models/torchvision/resnet18-IMAGENET1K_V1/resnet18-f37072fd.pth",
        fs::read(weights).unwrap(),
    );
    f.write("cache/models/torchvision/resnet18-IMAGENET1K_V1/fetched.json", "{}");
    let classes: serde_json::Map<String, Value> =
        (0..5).map(|i| (i.to_string(), json!([format!("n{i}"), format!("great_fish_{i}")]))).collect();
    f.write("cache/models/imagenet/imagenet_class_index.json", Value::from(classes).to_string());
    for i in 0..8u8 {
        let pixels: Vec<u8> = (0..40 * 30 * 3).map(|p| (p * 7 + usize::from(i) * 31) as u8).collect();
        let picture = Literal::from_slice([40, 30, 3], &pixels).unwrap();
        f.write(
            &format!("photos/{}/{i}.png", ["cat", "dog"][usize::from(i) % 2]),
            png::to_bytes(&picture).unwrap(),
        );
    }
    let name = "torchvision:resnet18";
    let o = run(&f, "", &["import", name, "--out", "m.safetensors", "--json"]).ok().json();
    assert_eq!(o["pretrained"]["is_new"], false);
    let answer = |model: &str| run(&f, "", &["predict", model, "photos/cat/0.png", "--json"]).ok().json();
    let by_name = answer(name);
    assert_eq!(by_name["class"].as_str().unwrap().split(' ').next(), Some("great"), "{by_name}");
    assert_eq!(probabilities(&by_name), probabilities(&answer("m.safetensors")));
    let tuned =
        ["train", "photos", "--from", name, "--fine-tune", "--epochs=1", "--batch-size=4", "--out=tuned"];
    let done = run(&f, "", &tuned).ok();
    assert!(done.out.contains("Weights: ") && done.out.contains(name), "{}", done.out);
    run(&f, "", &["predict", "tuned", "photos/dog/1.png"]).ok();
}
