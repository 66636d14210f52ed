//! `linkwise token`: makes, lists and revokes the tokens of a server's clients.

use crate::cmd::open::OfState;
use crate::store_errors::OrFailure;
use console::{Failure, Format, moment, now_unix_s, table, text_of};
use serde_json::json;
use server::auth::{Scope, certificate_hash, hash, is_reserved, new_token};
use std::str::FromStr;
use store::state::{NewToken, Token};
use store::{By, State};

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Example:
  linkwise token create scheduler --scope request --days 90 --state site.db
  linkwise token list --state site.db
  linkwise token revoke scheduler --state site.db

A token is shown once, when it is made: the state keeps its SHA-256. From the first token on, `linkwise serve` asks every client for \
one; a revoked token is refused within a second.

Scopes, each with the ones before it: read (see, ask what if), request (allocate; release and renew own jobs; report readings), operate \
(all jobs, drains, readings, diagnosis, fits), administer.")]
pub enum Commands {
    /// Make a token and print it once
    Create(Create),
    /// List the tokens
    List(OfState),
    /// Revoke a token
    Revoke(Revoke),
}

/// Arguments of `linkwise token create`.
#[derive(clap::Args)]
pub struct Create {
    /// Name of the client: it is the author of its changes
    name: String,
    /// What the client may do: read, request, operate or administer
    #[arg(long, value_parser = Scope::from_str)]
    scope: Scope,
    /// The name is that in a client certificate, and no secret is made
    #[arg(long)]
    certificate: bool,
    /// Days until the token ends (default: no end)
    #[arg(long, value_parser = console::number::real)]
    days: Option<f64>,
    #[command(flatten)]
    common: OfState,
}

/// Arguments of `linkwise token revoke`.
#[derive(clap::Args)]
pub struct Revoke {
    /// Name of the token
    name: String,
    #[command(flatten)]
    common: OfState,
}

pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::Create(a) => create(&a),
        Commands::List(a) => list(&a),
        Commands::Revoke(a) => revoke(&a),
    }
}

fn create(a: &Create) -> Result<(), Failure> {
    if let Some(days) = a.days.filter(|d| !(*d > 0.0 && *d <= 3660.0)) {
        return Err(Failure::input(format!("--days: {days} is not above 0 and at most 3,660")));
    }
    if is_reserved(&a.name) {
        return Err(Failure::input(format!("the name `{}` is reserved; choose another one", a.name)));
    }
    let mut state = State::open(&a.common.state).or_failure()?;
    let token = if a.certificate { None } else { Some(new_token().map_err(Failure::input)?) };
    let hash = token.as_deref().map_or_else(|| certificate_hash(&a.name), hash);
    let until_unix_s = a.days.map(|d| now_unix_s() + d * 86_400.0);
    let new = NewToken { name: a.name.clone(), hash, scope: a.scope.to_string(), until_unix_s };
    state.add_token(&new, &By::from(now_unix_s())).or_failure()?;
    match a.common.format {
        Format::Text if a.certificate => {
            console::print(&format!("clients with a certificate of `{}` have the scope `{}`\n", a.name, a.scope));
        }
        Format::Text => {
            console::say(&format!("token `{}` with scope `{}`; it is shown only now:", a.name, a.scope));
            console::print(&format!("{}\n", token.unwrap_or_default()));
        }
        Format::Json => {
            let v = json!({"name": a.name, "scope": a.scope, "token": token, "until_unix_s": until_unix_s});
            console::print(&format!("{v}\n"));
        }
    }
    Ok(())
}

fn list(a: &OfState) -> Result<(), Failure> {
    let tokens = State::open(&a.state).or_failure()?.tokens().or_failure()?;
    if a.format == Format::Json {
        console::print(&format!("{}\n", json!({"tokens": tokens})));
        return Ok(());
    }
    if tokens.is_empty() {
        console::print("There is no token: a server asks for none.\n");
        return Ok(());
    }
    let now = now_unix_s();
    let standing = |t: &Token| match (t.revoked_at_unix_s, t.until_unix_s) {
        (Some(at), _) => format!("revoked {}", moment(at, now)),
        (None, Some(end)) if end <= now => format!("ended {}", moment(end, now)),
        (None, Some(end)) => format!("until {}", moment(end, now)),
        (None, None) => "valid".into(),
    };
    let mut t = table(&["token", "scope", "made", "state"], 0..0);
    t.add_rows(
        tokens.iter().map(|x| vec![x.name.clone(), x.scope.clone(), moment(x.made_at_unix_s, now), standing(x)]),
    );
    console::print(&text_of(&t));
    Ok(())
}

fn revoke(a: &Revoke) -> Result<(), Failure> {
    let now = State::open(&a.common.state).or_failure()?.revoke_token(&a.name, &By::from(now_unix_s())).or_failure()?;
    match a.common.format {
        Format::Text if now => console::print(&format!("token `{}` is revoked\n", a.name)),
        Format::Text => console::print(&format!("token `{}` was revoked before\n", a.name)),
        Format::Json => console::print(&format!("{}\n", json!({"name": a.name, "revoked_now": now}))),
    }
    Ok(())
}
