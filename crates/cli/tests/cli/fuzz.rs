//! Runs the fuzz targets of `fuzz/` on their seeds with a fixed sequence of mutations: a small, deterministic part of
//! the fuzzing.

#[path = "../../../../fuzz/src/checkpoints.rs"]
mod checkpoints;
#[path = "../../../../fuzz/src/targets.rs"]
mod targets;
#[path = "../../../../fuzz/src/tokenizers.rs"]
mod tokenizers;
#[path = "../../../../fuzz/src/weights.rs"]
mod weights;

use systole_base::rng::RandomStream;

/// Mutated inputs for each target; `SYSTOLE_FUZZ_INPUTS` of them in the recorded run.
fn inputs() -> u64 {
    std::env::var("SYSTOLE_FUZZ_INPUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

/// One of the seeds with a few bytes changed, inserted, cut out or doubled.
fn mutated(seeds: &[Vec<u8>], draws: &mut RandomStream) -> Vec<u8> {
    let mut bytes = seeds[draws.below(seeds.len() as u64) as usize].clone();
    for _ in 0..1 + draws.below(4) {
        let n = bytes.len() as u64;
        let at = draws.below(n + 1) as usize;
        match draws.below(6) {
            0 if n > 0 => bytes[at % n as usize] ^= 1 << draws.below(8),
            1 if n > 0 => bytes[at % n as usize] = [0, 1, 0x7f, 0x80, 0xff][draws.below(5) as usize],
            2 => bytes.insert(at, draws.below(256) as u8),
            3 => drop(bytes.drain(at..(at + draws.below(9) as usize).min(n as usize))),
            4 => bytes.truncate(at),
            _ => {
                let part = bytes[at..].to_vec();
                bytes.extend(part.iter().take(64));
            }
        }
    }
    bytes
}

#[test]
fn seeds_and_their_mutations_make_no_panic() {
    let checkpoints: targets::Target = ("model", checkpoints::model, checkpoints::model_seeds);
    let tokenizers: targets::Target = ("tokenizer", tokenizers::tokenizer, tokenizers::tokenizer_seeds);
    let weights_of_others: targets::Target = ("weights", weights::weights, weights::weights_seeds);
    let pickles: targets::Target = ("pickle", weights::pickle, weights::pickle_seeds);
    let configs: targets::Target = ("hfconfig", weights::hfconfig, weights::hfconfig_seeds);
    let layers: targets::Target = ("keras", weights::keras, weights::keras_seeds);
    let own = [checkpoints, tokenizers, weights_of_others, pickles, configs, layers];
    let all = targets::TARGETS.into_iter().chain(own);
    for (k, (name, target, seeds)) in all.enumerate() {
        let seeds = seeds();
        assert!(!seeds.is_empty(), "{name}");
        seeds.iter().for_each(|seed| target(seed));
        for i in 0..inputs() {
            let input = mutated(&seeds, &mut RandomStream::new(5, k as u64, i));
            let ran = std::panic::catch_unwind(|| target(&input));
            assert!(ran.is_ok(), "{name} panicked on {input:02x?}");
        }
    }
}

#[test]
fn any_text_is_a_configuration_or_an_error() {
    let preset = systole::config::RunConfig::preset_text("fashion-mnist").unwrap().as_bytes().to_vec();
    let mut errors = 0;
    for i in 0..inputs() / 4 {
        let input = mutated(std::slice::from_ref(&preset), &mut RandomStream::new(6, 0, i));
        let text = String::from_utf8_lossy(&input);
        let parsed = std::panic::catch_unwind(|| systole::config::RunConfig::parse(&text, "fuzz").is_err());
        errors += parsed.unwrap_or_else(|_| panic!("panicked on {text}")) as u64;
    }
    assert!(errors > inputs() / 10, "mutations do damage: {errors}");
}
