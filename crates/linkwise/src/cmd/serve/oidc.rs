//! The flags of an identity provider.

use console::Failure;
use files::read_text;
use server::Oidc;
use server::auth::Scope;
use std::path::PathBuf;
use std::str::FromStr;

/// Largest file with a secret, bytes.
const SECRET_BYTES_MAX: usize = 4096;

/// Arguments of OpenID Connect.
#[derive(clap::Args)]
#[command(next_help_heading = "OpenID Connect")]
pub struct OidcArgs {
    /// Identity provider whose tokens are accepted, as in their `iss`; it publishes its keys below /.well-known
    #[arg(long, value_name = "URL", requires = "oidc_client_id")]
    oidc_issuer: Option<String>,
    /// Name of this server at the provider
    #[arg(long, value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// File with the secret of this server at the provider (default: a public client)
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Audience of the tokens in requests (default: the client ID)
    #[arg(long, value_name = "AUDIENCE", requires = "oidc_issuer")]
    oidc_audience: Option<String>,
    /// Claim whose values have scopes, such as groups or realm_access.roles
    #[arg(long, value_name = "CLAIM", requires = "oidc_map")]
    oidc_scope_claim: Option<String>,
    /// Scopes by value of that claim: ops=operate,staff=read; the highest one counts
    #[arg(long, value_name = "VALUE=SCOPE", requires = "oidc_scope_claim", value_delimiter = ',', value_parser = pair)]
    oidc_map: Vec<(String, Scope)>,
    /// Scope of every other subject (default: none; it is refused)
    #[arg(long, value_name = "SCOPE", requires = "oidc_issuer", value_parser = Scope::from_str)]
    oidc_scope: Option<Scope>,
    /// Claim with the tenant of a subject, which sees the jobs of its tenant only
    #[arg(long, value_name = "CLAIM", requires = "oidc_issuer")]
    oidc_tenant_claim: Option<String>,
    /// Authorities of the provider's certificate, PEM (default: those of this machine)
    #[arg(long, value_name = "FILE", requires = "oidc_issuer")]
    oidc_ca: Option<PathBuf>,
    /// Address of this server in browsers (default: that of the request); the provider sends them back to URL/login/callback
    #[arg(long, value_name = "URL", requires = "oidc_issuer")]
    public_url: Option<String>,
}

fn pair(text: &str) -> Result<(String, Scope), String> {
    let (value, scope) = text.rsplit_once('=').filter(|p| !p.0.is_empty()).ok_or("VALUE=SCOPE was expected")?;
    Ok((value.to_owned(), scope.parse()?))
}

impl OidcArgs {
    /// The settings; none without a provider.
    pub fn settings(self) -> Result<Option<Oidc>, Failure> {
        let Some((issuer, client)) = self.oidc_issuer.zip(self.oidc_client_id) else { return Ok(None) };
        let secret = self.oidc_client_secret_file.map(|f| {
            let secret = read_text(&f, SECRET_BYTES_MAX)?.trim().to_owned();
            match secret.is_empty() {
                true => Err(Failure::input(format!("{}: a secret was expected", f.display()))),
                false => Ok(secret),
            }
        });
        Ok(Some(Oidc {
            client_secret: secret.transpose()?,
            audience: self.oidc_audience,
            scope_claim: self.oidc_scope_claim,
            map: self.oidc_map,
            scope: self.oidc_scope,
            tenant_claim: self.oidc_tenant_claim,
            ca: self.oidc_ca,
            public_url: self.public_url,
            ..Oidc::new(&issuer, &client)
        }))
    }
}
