//! Matches names against patterns with `*` as a wildcard.

/// Whether the pattern matches all of `text`.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let Some(last) = parts.pop() else { return false };
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.len() >= last.len() && text.ends_with(last)
}

/// Whether the pattern matches a layer's whole path or its last component.
pub(crate) fn means(pattern: &str, layer: &str) -> bool {
    fits(pattern, layer) || fits(pattern, layer.rsplit('/').next().unwrap_or(layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_layers() {
        for (pattern, layer, yes) in [
            ("*", "dense", true),
            ("*attention*", "block_0/self_attention/query", true),
            ("query", "block_0/attention/query", true),
            ("quer", "block_0/attention/query", false),
            ("*query", "a/query_dense", false),
            ("b*_1*", "block_10/query", true),
            ("b*_1", "block_10", false),
        ] {
            assert_eq!(means(pattern, layer), yes, "{pattern} {layer}");
        }
    }
}
