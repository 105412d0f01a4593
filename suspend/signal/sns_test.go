package signal

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"
)

// authority is a chain root → intermediate → signing certificate, as a public one is.
type authority struct {
	root, middle, leaf *x509.Certificate
	key                *rsa.PrivateKey // of leaf
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	var a authority
	template := func(name string, ca bool) *x509.Certificate {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(len(name)) + 1), Subject: pkix.Name{CommonName: name}, IsCA: ca, BasicConstraintsValid: true,
			NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(24 * time.Hour),
		}
		if !ca {
			c.DNSNames = []string{name}
		}
		return c
	}
	sign := func(template, parent *x509.Certificate, public any, key crypto.Signer) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ecKey := func() *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	rootKey, middleKey := ecKey(), ecKey()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rootTemplate := template("a root", true)
	a.root = sign(rootTemplate, rootTemplate, rootKey.Public(), rootKey)
	a.middle = sign(template("a middle", true), a.root, middleKey.Public(), rootKey)
	a.leaf = sign(template(name, false), a.middle, key.Public(), middleKey)
	a.key = key
	return a
}

func (a authority) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.root)
	return pool
}

func pemOf(certs ...*x509.Certificate) []byte {
	var b []byte
	for _, c := range certs {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return b
}

// sign completes the envelope as SNS would.
func (a authority) sign(t *testing.T, e Envelope) Envelope {
	t.Helper()
	hash, digest := crypto.SHA1, sha1.Sum([]byte(e.signed()))
	sum := digest[:]
	if e.SignatureVersion == "2" {
		digest := sha256.Sum256([]byte(e.signed()))
		hash, sum = crypto.SHA256, digest[:]
	}
	b, err := rsa.SignPKCS1v15(rand.Reader, a.key, hash, sum)
	if err != nil {
		t.Fatal(err)
	}
	e.Signature = base64.StdEncoding.EncodeToString(b)
	return e
}

func notification(version string) Envelope {
	return Envelope{
		Type: SNSNotification, MessageID: "id", TopicARN: "arn:aws:sns:us-east-1:1:t", Message: "hello",
		Timestamp: "2026-03-01T12:00:00.000Z", SignatureVersion: version, Signature: "x",
		SigningCertURL: "https://sns.us-east-1.amazonaws.com/x.pem",
	}
}

func confirmation(version string) Envelope {
	e := notification(version)
	e.Type, e.Token = SNSSubscribe, "token"
	e.SubscribeURL = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription"
	return e
}

// TestSignedText holds the text against the documentation's example.
func TestSignedText(t *testing.T) {
	subject := "My First Message"
	e := Envelope{
		Type: SNSNotification, MessageID: "4d4dc071-ddbf-465d-bba8-08f81c89da64", Message: "My Test Message", Subject: &subject,
		Timestamp: "2019-01-31T04:37:04.321Z", TopicARN: "arn:aws:sns:us-east-2:123456789012:s4-MySNSTopic-1G1WEFCOXTC0P",
	}
	want := "Message\nMy Test Message\nMessageId\n4d4dc071-ddbf-465d-bba8-08f81c89da64\nSubject\nMy First Message\n" +
		"Timestamp\n2019-01-31T04:37:04.321Z\nTopicArn\narn:aws:sns:us-east-2:123456789012:s4-MySNSTopic-1G1WEFCOXTC0P\nType\nNotification\n"
	if got := e.signed(); got != want {
		t.Errorf("%q", got)
	}
	want = "Message\nhello\nMessageId\nid\nSubscribeURL\nhttps://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription\n" +
		"Timestamp\n2026-03-01T12:00:00.000Z\nToken\ntoken\nTopicArn\narn:aws:sns:us-east-1:1:t\nType\nSubscriptionConfirmation\n"
	if got := confirmation("1").signed(); got != want {
		t.Errorf("%q", got)
	}
}

func TestVerify(t *testing.T) {
	a, other := newAuthority(t, "sns.amazonaws.com"), newAuthority(t, "sns.amazonaws.com")
	subject := ""
	withSubject := notification("2")
	withSubject.Subject = &subject
	for _, e := range []Envelope{notification("1"), notification("2"), confirmation("1"), confirmation("2"), withSubject} {
		signed := a.sign(t, e)
		if err := signed.Verify(a.leaf); err != nil {
			t.Errorf("%s %s: %v", e.Type, e.SignatureVersion, err)
		}
		for name, change := range map[string]func(*Envelope){
			"message":   func(e *Envelope) { e.Message = "forged" },
			"topic":     func(e *Envelope) { e.TopicARN = "forged" },
			"time":      func(e *Envelope) { e.Timestamp = "2026-03-01T13:00:00.000Z" },
			"version":   func(e *Envelope) { e.SignatureVersion = map[string]string{"1": "2", "2": "1"}[e.SignatureVersion] },
			"base64":    func(e *Envelope) { e.Signature = "!" },
			"signature": func(e *Envelope) { e.Signature = base64.StdEncoding.EncodeToString(make([]byte, 256)) },
		} {
			forged := signed
			change(&forged)
			if err := forged.Verify(a.leaf); !errors.Is(err, ErrSignature) {
				t.Errorf("%s %s: forged %s is accepted: %v", e.Type, e.SignatureVersion, name, err)
			}
		}
		if err := signed.Verify(other.leaf); !errors.Is(err, ErrSignature) {
			t.Errorf("another key: %v", err)
		}
	}
	if err := a.sign(t, notification("2")).Verify(a.middle); !errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), "RSA") {
		t.Errorf("a key that is not RSA: %v", err)
	}
}

func TestReplay(t *testing.T) {
	e := notification("1")
	for after, ok := range map[time.Duration]bool{
		0: true, ReplayMax: true, ReplayMax + 1: false, -aheadMax: true, -aheadMax - 1: false,
	} {
		if err := e.CheckTime(noon.Add(after)); (err == nil) != ok || err != nil && !errors.Is(err, ErrSignature) {
			t.Errorf("after %v: %v", after, err)
		}
	}
}

func TestSNSURL(t *testing.T) {
	for raw, ok := range map[string]bool{
		"https://sns.us-east-1.amazonaws.com/x.pem":                       true,
		"https://sns.cn-north-1.amazonaws.com.cn/x.pem":                   true,
		"http://sns.us-east-1.amazonaws.com/x.pem":                        false,
		"https://sns.us-east-1.amazonaws.com.evil.example/x.pem":          false,
		"https://evil.example/sns.us-east-1.amazonaws.com":                false,
		"https://sns.us-east-1.amazonaws.com@evil.example/":               false,
		"https://user@sns.us-east-1.amazonaws.com/":                       false,
		"https://sns.us-east-1.amazonaws.com:8443/":                       false,
		"https://sns.us-east-1xamazonaws.com/":                            false,
		"https://bucket.s3.amazonaws.com/x.pem":                           false,
		"https://sns.a.b.amazonaws.com/":                                  false,
		"https://sns..amazonaws.com/":                                     false,
		"https://SNS.us-east-1.amazonaws.com/":                            false,
		"https:sns.us-east-1.amazonaws.com":                               false,
		"":                                                                false,
		"https://sns.us-east-1.amazonaws.com\n.evil.example/":             false,
		"https://[::1]/":                                                  false,
		"https://169.254.169.254/latest":                                  false,
		"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription": true,
	} {
		if err := CheckSNSURL("SubscribeURL", raw); (err == nil) != ok {
			t.Errorf("%q: %v", raw, err)
		} else if err != nil && (!errors.Is(err, ErrSignature) || !strings.Contains(err.Error(), "SubscribeURL")) {
			t.Errorf("%q: %v", raw, err)
		}
	}
}

func TestSNSCertificate(t *testing.T) {
	a, other := newAuthority(t, "sns.amazonaws.com"), newAuthority(t, "sns.evil.example")
	if cert, err := SNSCertificate(noon, pemOf(a.leaf, a.middle), nil, a.roots()); err != nil || !cert.Equal(a.leaf) {
		t.Errorf("whole chain: %v", err)
	}
	if _, err := SNSCertificate(noon, pemOf(a.leaf), []*x509.Certificate{a.middle}, a.roots()); err != nil {
		t.Errorf("with the intermediate from elsewhere: %v", err)
	}
	for name, tc := range map[string]struct {
		now   time.Time
		file  []byte
		roots *x509.CertPool
	}{
		"no chain":       {noon, pemOf(a.leaf), a.roots()},
		"other roots":    {noon, pemOf(a.leaf, a.middle), other.roots()},
		"system's roots": {noon, pemOf(a.leaf, a.middle), nil},
		"expired":        {noon.Add(48 * time.Hour), pemOf(a.leaf, a.middle), a.roots()},
		"other name":     {noon, pemOf(other.leaf, other.middle), other.roots()},
		"no PEM":         {noon, []byte("hello"), a.roots()},
		"no certificate": {noon, pem.EncodeToMemory(&pem.Block{Type: "X", Bytes: []byte("x")}), a.roots()},
		"too large":      {noon, make([]byte, MaxCertificateBytes+1), a.roots()},
	} {
		if _, err := SNSCertificate(tc.now, tc.file, nil, tc.roots); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseSNS(t *testing.T) {
	for _, e := range []Envelope{notification("1"), confirmation("2")} {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseSNS(b)
		if err != nil || got != e || !got.Time().Equal(noon) {
			t.Errorf("%+v, %v", got, err)
		}
		for field, change := range map[string]func(*Envelope){
			"Type":             func(e *Envelope) { e.Type = "Other" },
			"MessageId":        func(e *Envelope) { e.MessageID = "" },
			"TopicArn":         func(e *Envelope) { e.TopicARN = strings.Repeat("a", 513) },
			"Message":          func(e *Envelope) { e.Message = "" },
			"Timestamp":        func(e *Envelope) { e.Timestamp = "noon" },
			"SignatureVersion": func(e *Envelope) { e.SignatureVersion = "3" },
			"Signature":        func(e *Envelope) { e.Signature = "" },
			"SigningCertURL":   func(e *Envelope) { e.SigningCertURL = "" },
		} {
			bad := e
			change(&bad)
			b, err := json.Marshal(bad)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseSNS(b); !errors.Is(err, ErrAlert) || !strings.Contains(err.Error(), field+":") {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
	e := confirmation("1")
	e.SubscribeURL = ""
	b, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseSNS(b); err == nil || !strings.Contains(err.Error(), "SubscribeURL") {
		t.Errorf("without SubscribeURL: %v", err)
	}
}

func FuzzParseSNS(f *testing.F) {
	f.Add([]byte(`{"Type":"Notification","MessageId":"a","TopicArn":"b","Message":"c","Timestamp":"2026-03-01T12:00:00Z","Signature":"x","SignatureVersion":"1","SigningCertURL":"u"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if e, err := ParseSNS(body); err == nil && (e.Time().IsZero() && e.Timestamp[:4] != "0001" || e.MessageID == "") {
			t.Errorf("%+v", e)
		}
	})
}
