//! Parses a struct or enum with serde's attributes from tokens.

use proc_macro::{Delimiter, TokenStream, TokenTree};
use std::iter::Peekable;

/// A struct or enum.
pub struct Item {
    pub name: String,
    /// Generic parameters with their bounds, `<const N: usize>`; empty if none.
    pub generics: String,
    /// The same as arguments: `<N>`.
    pub arguments: String,
    /// `#[serde(default)]`: missing fields have the values of the type's `Default`.
    pub defaults: bool,
    /// `#[serde(deny_unknown_fields)]`.
    pub strict: bool,
    /// Where clause of the deserialized type: `bound(deserialize = "…")`.
    pub bound: String,
    /// `#[serde(from_str)]`: a string is read by the type's `FromStr`, whose error names similar names.
    pub from_str: bool,
    /// `#[serde(remote = "Self")]`: the type implements serde's traits itself, with the help of the generated conversions.
    pub remote: bool,
    pub body: Body,
}

/// Fields or variants of an item.
pub enum Body {
    /// A struct with one unnamed field, which converts as the field.
    Newtype,
    Struct(Vec<Field>),
    Enum(Enum),
}

/// A named field.
#[derive(Default)]
pub struct Field {
    pub name: String,
    /// Key in JSON.
    pub key: String,
    /// Never written nor read.
    pub skip: bool,
    /// Function that decides whether to leave the field out.
    pub skip_if: Option<String>,
    /// Expression for the value of a missing field: a literal, or a call of the function that `default` names.
    pub default: Option<String>,
    /// Function that reads the field: `deserialize_with`.
    pub read: Option<String>,
}

/// Variants of an enum.
pub struct Enum {
    pub variants: Vec<Variant>,
    /// Keys of an adjacently tagged enum: `tag` and `content`.
    pub tags: Option<(String, String)>,
    /// `#[serde(untagged)]`: the message if no variant fits, with its escapes.
    pub untagged: Option<String>,
}

impl Enum {
    /// Returns an expression for the content of a variant that has some; an error if there is none.
    pub fn content(&self, kind: &str) -> String {
        match &self.tags {
            Some((_, key)) => format!("content.ok_or_else(|| crate::json::missing({key:?}))"),
            None => format!("content.ok_or_else(|| crate::json::unit_variant(\"{kind} variant\"))"),
        }
    }
}

/// A variant of an enum.
pub struct Variant {
    pub name: String,
    /// Name in JSON.
    pub key: String,
    /// Neither written nor read.
    pub skip: bool,
    /// Further names that are read.
    pub aliases: Vec<String>,
    pub fields: VariantFields,
}

impl Variant {
    /// Returns the names that are read, in alphabetical order.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.aliases.iter().chain([&self.key]).map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

/// Fields of a variant.
pub enum VariantFields {
    Unit,
    /// One unnamed field.
    One,
    Named(Vec<Field>),
}

type Tokens = Peekable<proc_macro::token_stream::IntoIter>;
type Result<T> = std::result::Result<T, String>;

/// Parses the tokens of a derive macro.
pub fn parse(input: TokenStream) -> Result<Item> {
    let mut tokens = input.into_iter().peekable();
    let attributes = attributes(&mut tokens)?;
    skip_visibility(&mut tokens);
    let kind = word(&mut tokens)?;
    let name = word(&mut tokens)?;
    let (generics, arguments) = generics(&mut tokens)?;
    let (body, newtype) = match tokens.next() {
        Some(TokenTree::Group(group)) => (group.stream(), group.delimiter() == Delimiter::Parenthesis),
        _ => return Err(format!("cannot derive JSON for {name}: expected fields or variants")),
    };
    let (mut defaults, mut strict, mut remote, mut bound) = (false, false, false, String::new());
    let (mut from_str, mut skip_none) = (false, false);
    let (mut tag, mut content, mut case, mut untagged, mut expecting) = (None, None, None, false, None);
    for (key, value) in attributes {
        match (key.as_str(), value) {
            ("default", None) => defaults = true,
            ("deny_unknown_fields", None) => strict = true,
            ("tag", value) => tag = value,
            ("content", value) => content = value,
            ("rename_all", value) => case = value,
            ("bound", Some(text)) if text.is_empty() => {}
            ("bound", Some(text)) => bound = format!("where {text}"),
            ("untagged", None) => untagged = true,
            ("from_str", None) => from_str = true,
            ("skip_serializing_none", None) => skip_none = true,
            ("expecting", text) => expecting = text,
            ("remote", Some(_)) => remote = true,
            _ => return Err(format!("unsupported attribute `{key}` of {name}")),
        }
    }
    let no_variant = || format!("data did not match any variant of untagged enum {name}");
    let untagged = untagged.then(|| expecting.unwrap_or_else(no_variant));
    let body = match (kind.as_str(), tag.zip(content)) {
        ("struct", None) if newtype => Body::Newtype,
        ("struct", None) => Body::Struct(fields(body, skip_none)?),
        ("enum", tags) => {
            Body::Enum(Enum { variants: variants(body, case.as_deref(), skip_none)?, tags, untagged })
        }
        _ => return Err(format!("unsupported combination of attributes of {name}")),
    };
    Ok(Item { name, generics, arguments, defaults, strict, bound, from_str, remote, body })
}

/// Reads `#[…]` and returns the arguments of `#[serde(…)]`: keys, with values if they have one.
fn attributes(tokens: &mut Tokens) -> Result<Vec<(String, Option<String>)>> {
    let mut found = Vec::new();
    while is_punct(tokens.peek(), '#') {
        tokens.next();
        let Some(TokenTree::Group(group)) = tokens.next() else { return Err("expected an attribute".into()) };
        let mut inner = without_invisible(group.stream()).into_iter().peekable();
        if word(&mut inner).is_ok_and(|name| name == "serde")
            && let Some(TokenTree::Group(list)) = inner.next()
        {
            let mut list = without_invisible(list.stream()).into_iter().peekable();
            while list.peek().is_some() {
                let key = word(&mut list)?;
                let value = match list.next() {
                    Some(TokenTree::Punct(p)) if p.as_char() == '=' => {
                        let text = list.next().map(|t| t.to_string()).unwrap_or_default();
                        list.next();
                        match unquoted(&text) {
                            path if key == "default" && path != text => Some(format!("{path}()")),
                            text => Some(text.to_string()),
                        }
                    }
                    Some(TokenTree::Group(group)) => {
                        list.next();
                        Some(deserialize_bound(group.stream()))
                    }
                    _ => None,
                };
                found.push((key, value));
            }
        }
    }
    Ok(found)
}

/// Unpacks groups without delimiters, in which macros wrap their fragments.
fn without_invisible(tokens: TokenStream) -> TokenStream {
    let unpack = |token| match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::None => without_invisible(group.stream()),
        other => TokenStream::from(other),
    };
    tokens.into_iter().map(unpack).collect()
}

/// Removes the quotes of a string literal; escapes stay.
fn unquoted(literal: &str) -> &str {
    literal.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(literal)
}

/// Returns the text of `deserialize = "…"` in the arguments of `bound(…)`.
fn deserialize_bound(arguments: TokenStream) -> String {
    let mut tokens = arguments.into_iter().skip_while(|t| t.to_string() != "deserialize").skip(2);
    tokens.next().map(|text| unquoted(&text.to_string()).to_string()).unwrap_or_default()
}

/// Parses named fields.
fn fields(body: TokenStream, skip_none: bool) -> Result<Vec<Field>> {
    let mut tokens = body.into_iter().peekable();
    let mut all = Vec::new();
    while tokens.peek().is_some() {
        let mut field = Field::default();
        let attributes = attributes(&mut tokens)?;
        skip_visibility(&mut tokens);
        field.name = word(&mut tokens)?;
        field.key = field.name.trim_start_matches("r#").to_string();
        for (key, value) in attributes {
            match (key.as_str(), value) {
                ("default", None) => field.default = Some("::std::default::Default::default()".into()),
                ("default", value) => field.default = value,
                ("skip", None) => field.skip = true,
                ("skip_serializing_if", path) => field.skip_if = path,
                ("deserialize_with", path) => field.read = path,
                ("rename", Some(name)) => field.key = name,
                _ => return Err(format!("unsupported attribute `{key}` of field {}", field.name)),
            }
        }
        tokens.next();
        if skip_none && is_option(tokens.peek()) {
            field.skip_if = Some("::std::option::Option::is_none".into());
        }
        skip_past_comma(&mut tokens);
        all.push(field);
    }
    Ok(all)
}

/// Parses the variants of an enum; `case` is the value of `rename_all`.
fn variants(body: TokenStream, case: Option<&str>, skip_none: bool) -> Result<Vec<Variant>> {
    let mut tokens = body.into_iter().peekable();
    let mut all = Vec::new();
    while tokens.peek().is_some() {
        let attributes = attributes(&mut tokens)?;
        let name = word(&mut tokens)?;
        let (mut key, mut aliases, mut skip) = (renamed(&name, case)?, Vec::new(), false);
        for (attribute, value) in attributes {
            match (attribute.as_str(), value) {
                ("rename", Some(name)) => key = name,
                ("alias", Some(name)) => aliases.push(name),
                ("skip", None) => skip = true,
                _ => return Err(format!("unsupported attribute `{attribute}` of variant {name}")),
            }
        }
        let fields = match tokens.peek() {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                VariantFields::Named(fields(group.stream(), skip_none)?)
            }
            Some(TokenTree::Group(_)) => VariantFields::One,
            _ => VariantFields::Unit,
        };
        skip_past_comma(&mut tokens);
        all.push(Variant { name, key, skip, aliases, fields });
    }
    Ok(all)
}

/// Returns a variant's name in the case of `rename_all`.
fn renamed(name: &str, case: Option<&str>) -> Result<String> {
    match case {
        None => Ok(name.to_string()),
        Some("lowercase") => Ok(name.to_lowercase()),
        Some("snake_case") => {
            let mut snake = String::new();
            for (i, letter) in name.char_indices() {
                if letter.is_uppercase() && i > 0 {
                    snake.push('_');
                }
                snake.extend(letter.to_lowercase());
            }
            Ok(snake)
        }
        Some(other) => Err(format!("unsupported case `{other}`")),
    }
}

/// Reads generic parameters; returns them with bounds, and as arguments.
fn generics(tokens: &mut Tokens) -> Result<(String, String)> {
    if !is_punct(tokens.peek(), '<') {
        return Ok(Default::default());
    }
    let (mut all, mut names, mut depth, mut starts, mut default) =
        (String::new(), String::new(), 0, true, false);
    for token in tokens.by_ref() {
        match &token {
            TokenTree::Punct(p) if p.as_char() == '=' && depth == 1 => default = true,
            TokenTree::Punct(p) if p.as_char() == '<' => depth += 1,
            TokenTree::Punct(p) if p.as_char() == '>' => depth -= 1,
            TokenTree::Punct(p) if p.as_char() == ',' && depth == 1 => (starts, default) = (true, false),
            TokenTree::Ident(word) if starts && word.to_string() != "const" => {
                names += &format!("{word},");
                starts = false;
            }
            _ => {}
        }
        if !default || depth == 0 {
            all += &format!("{token} ");
        }
        if depth == 0 {
            return Ok((all, format!("<{names}>")));
        }
    }
    Err("expected the end of the generic parameters".into())
}

/// Skips `pub` and `pub(…)`.
fn skip_visibility(tokens: &mut Tokens) {
    // A macro's `$vis` is a group without delimiters.
    if matches!(tokens.peek(), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::None) {
        tokens.next();
        return;
    }
    if matches!(tokens.peek(), Some(TokenTree::Ident(word)) if word.to_string() == "pub") {
        tokens.next();
        if matches!(tokens.peek(), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
        {
            tokens.next();
        }
    }
}

/// Skips the rest of a field or variant, and the comma after it.
fn skip_past_comma(tokens: &mut Tokens) {
    let (mut depth, mut arrow) = (0, false);
    for token in tokens.by_ref() {
        if let TokenTree::Punct(p) = &token {
            match p.as_char() {
                '<' => depth += 1,
                '>' if !arrow => depth -= 1,
                ',' if depth == 0 => return,
                _ => {}
            }
            arrow = p.as_char() == '-';
        }
    }
}

/// Reads an identifier.
fn word(tokens: &mut Tokens) -> Result<String> {
    match tokens.next() {
        Some(TokenTree::Ident(word)) => Ok(word.to_string()),
        // A macro's `$name` can be a group without delimiters.
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::None => {
            word(&mut group.stream().into_iter().peekable())
        }
        other => Err(format!("expected a name, got {}", other.map_or("nothing".into(), |t| t.to_string()))),
    }
}

/// Whether a type's first token is `Option`; a macro's `$ty` is a group without delimiters.
fn is_option(token: Option<&TokenTree>) -> bool {
    match token {
        Some(TokenTree::Ident(word)) => word.to_string() == "Option",
        Some(TokenTree::Group(group)) => is_option(group.stream().into_iter().next().as_ref()),
        _ => false,
    }
}

fn is_punct(token: Option<&TokenTree>, is: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == is)
}
