package signal

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // version 1 of SNS's signatures is SHA-1; its topics default to it
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Types of SNS's messages.
const (
	SNSNotification = "Notification"
	SNSSubscribe    = "SubscriptionConfirmation"
	SNSUnsubscribe  = "UnsubscribeConfirmation"
)

const (
	// ReplayMax is how old a message of SNS may be: SNS itself gives up delivering after an hour.
	ReplayMax = time.Hour
	// aheadMax is how far SNS's clock may be ahead of ours.
	aheadMax = 5 * time.Minute
	// MaxCertificateBytes bounds the file with a signing certificate.
	MaxCertificateBytes = 64 << 10
	maxURLBytes         = 2048
	maxTextBytes        = 256 << 10 // SNS's own limit of a message
)

// ErrSignature is wrapped by every error about a message that SNS did not sign, or not now.
var ErrSignature = errors.New("message is not signed by SNS")

// Envelope is what SNS posts to an HTTP(S) endpoint, without raw message delivery; see
// https://docs.aws.amazon.com/sns/latest/dg/http-subscription-confirmation-json.html and the pages beside it.
type Envelope struct {
	Type             string  `json:"Type"`
	MessageID        string  `json:"MessageId"`
	Token            string  `json:"Token"`
	TopicARN         string  `json:"TopicArn"`
	Subject          *string `json:"Subject"` // signed if it is there, also if it is empty
	Message          string  `json:"Message"`
	Timestamp        string  `json:"Timestamp"`
	SignatureVersion string  `json:"SignatureVersion"`
	Signature        string  `json:"Signature"`
	SigningCertURL   string  `json:"SigningCertURL"`
	SubscribeURL     string  `json:"SubscribeURL"`
}

// ParseSNS reads an envelope and checks that it is complete. Nothing in it is to be trusted before CheckTime and Verify.
// Errors wrap ErrAlert and name the field.
func ParseSNS(body []byte) (Envelope, error) {
	var e Envelope
	if err := decode(body, &e); err != nil {
		return Envelope{}, err
	}
	confirms := e.Type == SNSSubscribe || e.Type == SNSUnsubscribe
	if !confirms && e.Type != SNSNotification {
		return Envelope{}, fmt.Errorf("%w: Type: is %q, want %s, %s or %s",
			ErrAlert, e.Type, SNSNotification, SNSSubscribe, SNSUnsubscribe)
	}
	for _, f := range []struct {
		name, value string
		limit       int
		required    bool
	}{
		{"MessageId", e.MessageID, 128, true},
		{"TopicArn", e.TopicARN, 512, true},
		{"Message", e.Message, maxTextBytes, true},
		{"Timestamp", e.Timestamp, 64, true},
		{"Signature", e.Signature, 4096, true},
		{"SigningCertURL", e.SigningCertURL, maxURLBytes, true},
		{"Token", e.Token, 4096, confirms},
		{"SubscribeURL", e.SubscribeURL, maxURLBytes, confirms},
	} {
		switch {
		case f.required && f.value == "":
			return Envelope{}, fmt.Errorf("%w: %s: is missing", ErrAlert, f.name)
		case len(f.value) > f.limit:
			return Envelope{}, fmt.Errorf("%w: %s: has %d bytes, the limit is %d", ErrAlert, f.name, len(f.value), f.limit)
		}
	}
	if e.SignatureVersion != "1" && e.SignatureVersion != "2" {
		return Envelope{}, fmt.Errorf("%w: SignatureVersion: is %q, want \"1\" or \"2\"", ErrAlert, e.SignatureVersion)
	}
	if _, err := time.Parse(time.RFC3339, e.Timestamp); err != nil {
		return Envelope{}, fmt.Errorf("%w: Timestamp: is %q, want RFC 3339", ErrAlert, e.Timestamp)
	}
	return e, nil
}

// Time is when SNS sent the message. REQUIRES: e is ParseSNS's.
func (e Envelope) Time() time.Time {
	t, err := time.Parse(time.RFC3339, e.Timestamp)
	if err != nil {
		return time.Time{} // older than any bound
	}
	return t
}

// CheckTime refuses, as ErrSignature, a message that is older than ReplayMax: it is played back by somebody.
func (e Envelope) CheckTime(now time.Time) error {
	switch age := now.Sub(e.Time()); {
	case age > ReplayMax:
		return fmt.Errorf("%w: Timestamp: is %v ago, the limit is %v", ErrSignature, age.Round(time.Second), ReplayMax)
	case age < -aheadMax:
		return fmt.Errorf("%w: Timestamp: is %v ahead, the limit is %v", ErrSignature, -age.Round(time.Second), aheadMax)
	}
	return nil
}

// Verify refuses, as ErrSignature, what the certificate's key did not sign. That the certificate is SNS's is for
// SNSCertificate to say.
func (e Envelope) Verify(cert *x509.Certificate) error {
	key, ok := cert.PublicKey.(*rsa.PublicKey)
	if !ok {
		return fmt.Errorf("%w: the certificate's key is a %T, want RSA", ErrSignature, cert.PublicKey)
	}
	signature, err := base64.StdEncoding.DecodeString(e.Signature)
	if err != nil {
		return fmt.Errorf("%w: Signature: is not base64", ErrSignature)
	}
	text := []byte(e.signed())
	hash, digest := crypto.SHA256, []byte(nil)
	if e.SignatureVersion == "1" {
		sum := sha1.Sum(text) //nolint:gosec // see the import
		hash, digest = crypto.SHA1, sum[:]
	} else {
		sum := sha256.Sum256(text)
		digest = sum[:]
	}
	if err := rsa.VerifyPKCS1v15(key, hash, digest, signature); err != nil {
		return fmt.Errorf("%w: Signature: does not fit the message (version %s)", ErrSignature, e.SignatureVersion)
	}
	return nil
}

// signed is the text that SNS signs: names and values, a line each, in the order of the names. See
// https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html.
func (e Envelope) signed() string {
	var b strings.Builder
	line := func(name, value string) {
		b.WriteString(name)
		b.WriteByte('\n')
		b.WriteString(value)
		b.WriteByte('\n')
	}
	line("Message", e.Message)
	line("MessageId", e.MessageID)
	if e.Type == SNSNotification {
		if e.Subject != nil {
			line("Subject", *e.Subject)
		}
	} else {
		line("SubscribeURL", e.SubscribeURL)
	}
	line("Timestamp", e.Timestamp)
	if e.Type != SNSNotification {
		line("Token", e.Token)
	}
	line("TopicArn", e.TopicARN)
	line("Type", e.Type)
	return b.String()
}

// snsHost is what a URL in an envelope may point to; snsName is what a signing certificate may be made out to.
var (
	snsHost = regexp.MustCompile(`^sns\.[a-z0-9-]+\.amazonaws\.com(\.cn)?$`)
	snsName = regexp.MustCompile(`^sns[a-z0-9.-]*\.amazonaws\.com(\.cn)?$`)
)

// CheckSNSURL refuses, as ErrSignature, a URL that is not https on a host of SNS. Whoever posts an envelope chooses its
// URLs; without this check the server would fetch whatever it is told to, and trust any key.
func CheckSNSURL(field, raw string) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: is not a URL", ErrSignature, field)
	case u.Scheme != "https" || u.User != nil || u.Opaque != "":
		return fmt.Errorf("%w: %s: want https without credentials", ErrSignature, field)
	case !snsHost.MatchString(u.Host): // with a port it does not match
		return fmt.Errorf("%w: %s: host %q is not SNS's, want sns.REGION.amazonaws.com", ErrSignature, field, u.Host)
	}
	return nil
}

// SNSCertificate reads the file behind a SigningCertURL: the signing certificate, and perhaps others of its chain. The
// chain must lead to roots (nil: the machine's) at now, through those in the file or the given intermediates, and the
// certificate must be made out to a name of SNS. Errors wrap ErrSignature.
func SNSCertificate(now time.Time, file []byte, intermediates []*x509.Certificate, roots *x509.CertPool) (*x509.Certificate, error) {
	if len(file) > MaxCertificateBytes {
		return nil, fmt.Errorf("%w: certificate: has %d bytes, the limit is %d", ErrSignature, len(file), MaxCertificateBytes)
	}
	var leaf *x509.Certificate
	pool := x509.NewCertPool()
	for block, rest := pem.Decode(file); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: certificate: %w", ErrSignature, err)
		case leaf == nil:
			leaf = cert
		default:
			pool.AddCert(cert)
		}
	}
	if leaf == nil {
		return nil, fmt.Errorf("%w: certificate: is not PEM", ErrSignature)
	}
	for _, cert := range intermediates {
		pool.AddCert(cert)
	}
	if !madeOutToSNS(leaf) {
		return nil, fmt.Errorf("%w: certificate: is made out to %q %q, not to SNS", ErrSignature, leaf.Subject.CommonName, leaf.DNSNames)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, fmt.Errorf("%w: certificate: %w", ErrSignature, err)
	}
	return leaf, nil
}

func madeOutToSNS(cert *x509.Certificate) bool {
	if len(cert.DNSNames) == 0 {
		return snsName.MatchString(cert.Subject.CommonName)
	}
	return slices.ContainsFunc(cert.DNSNames, snsName.MatchString)
}
