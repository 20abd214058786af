package identity

import (
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// A CheckError says why an envelope was not let in, as a refusal for its sender.
type CheckError struct {
	Code proto.Code
	Err  error
}

func (e *CheckError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *CheckError) Unwrap() error { return e.Err }

// Refusal returns the code that the sender is answered with.
func (e *CheckError) Refusal() proto.Code { return e.Code }

func refuse(code proto.Code, format string, args ...any) error {
	return &CheckError{code, fmt.Errorf("check envelope: "+format, args...)}
}

// A unknownPeerError names who is not a member. It makes its words when they are
// read: strangers must stay cheap to refuse.
type unknownPeerError proto.PeerID

func (e unknownPeerError) Error() string {
	return fmt.Sprintf("check envelope: %s is not a member", proto.PeerID(e))
}

// Checks is what an envelope is checked against. A value may be used by many
// goroutines as long as nobody changes it.
type Checks struct {
	Mesh     Mesh
	Self     proto.PeerID
	Member   func(proto.PeerID) (Member, bool) // also one whose certificate has ended and may be renewed; false: unknown or revoked; nil: membership is not checked
	Now      time.Time
	Doubted  bool  // the clock that says Now is: nothing is refused for good by it
	Floor    int64 // Unix milliseconds: what ends at or before it may have been seen and forgotten
	Verifier *Verifier
	Keys     *Keys
}

// Verified is an envelope that passed every check.
type Verified struct {
	Header  proto.Header
	Content []byte   // a marshalled proto.Content or proto.Outcome, as Header.What says
	Key     [32]byte // of the content: streamed bodies are opened with it
}

// Check makes every check of an envelope that needs no store, the cheap ones
// first: form and size, mesh, target, membership, time, signature, key, body. So
// a stranger costs a microsecond and a forger one signature. The errors are all
// *CheckError. Whether the origin may ask for the kind, and whether the task is
// known, is still to be checked.
func (c *Checks) Check(env *proto.Envelope) (Verified, error) {
	h, err := checkFormat(env)
	if err != nil {
		return Verified{}, err
	}
	if h.Mesh != c.Mesh.ID {
		return Verified{}, refuse(proto.CodeDenied, "it is of mesh %s, this is %s", h.Mesh, c.Mesh.ID)
	}
	if h.Target != c.Self {
		return Verified{}, refuse(proto.CodeDenied, "it is for %s, this is %s", h.Target.Short(), c.Self.Short())
	}
	if c.Member != nil {
		if err := c.checkOrigin(&h); err != nil {
			return Verified{}, err
		}
	}
	if err := c.checkTime(&h); err != nil {
		return Verified{}, err
	}
	proof := Proof{Index: env.GetIndex(), Path: env.GetPath()}
	leaf := EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)
	if err := c.Verifier.Verify(h.Origin, leaf, proof, env.GetSignature()); err != nil {
		return Verified{}, refuse(proto.CodeBadSignature, "from %s: %w", h.Origin.Short(), err)
	}
	if c.Keys.outdated(env.GetSlot(), c.Now) {
		return Verified{}, refuse(proto.CodeBadKey, "from %s: sealed to a key that was replaced long ago", h.Origin.Short())
	}
	content, key, err := c.Keys.Open(env, &h)
	switch {
	case errors.Is(err, ErrBadKey):
		return Verified{}, refuse(proto.CodeBadKey, "from %s: %w", h.Origin.Short(), err)
	case err != nil:
		return Verified{}, refuse(proto.CodeBadForm, "from %s: %w", h.Origin.Short(), err)
	}
	return Verified{Header: h, Content: content, Key: key}, nil
}

// checkFormat reads the header and holds the sizes against it and the limits.
func checkFormat(env *proto.Envelope) (proto.Header, error) {
	var none proto.Header
	switch {
	case len(env.GetHeader()) > proto.MaxHeader:
		return none, refuse(proto.CodeTooLarge, "a header of %d bytes, the limit is %d", len(env.GetHeader()), proto.MaxHeader)
	case len(env.GetBody()) > proto.MaxSealed:
		return none, refuse(proto.CodeTooLarge, "a body of %d bytes, the limit is %d", len(env.GetBody()), proto.MaxSealed)
	}
	h, err := proto.ParseHeader(env.GetHeader())
	if errors.Is(err, proto.ErrCritical) || errors.Is(err, proto.ErrVersion) {
		return none, refuse(proto.CodeUnknownVersion, "%w", err)
	} else if err != nil {
		return none, refuse(proto.CodeBadForm, "%w", err)
	}
	if _, err := suiteOf(h.Suite); err != nil {
		return none, refuse(proto.CodeUnknownVersion, "%w", err)
	}
	if int(h.SealedLen) != len(env.GetBody()) || h.SealedLen < sealOverhead {
		return none, refuse(proto.CodeBadForm, "a body of %d bytes, the header says %d", len(env.GetBody()), h.SealedLen)
	}
	if h.ID.IsZero() {
		return none, refuse(proto.CodeBadForm, "it has no id")
	}
	if size, chunk, ok := h.Stream(); ok {
		if _, err := PlainSize(int64(size)); err != nil || chunk != proto.ChunkSize {
			return none, refuse(proto.CodeBadForm, "no stream has %d bytes in chunks of %d", size, chunk)
		}
	}
	return h, nil
}

// checkOrigin asks whether the origin may say what it says.
func (c *Checks) checkOrigin(h *proto.Header) error {
	m, ok := c.Member(h.Origin)
	if !ok {
		return &CheckError{proto.CodeDenied, unknownPeerError(h.Origin)}
	}
	role := RoleSend
	if h.What == proto.WhatResult {
		role = RoleWork
	}
	if !m.HasRole(role) {
		return refuse(proto.CodeDenied, "%q does not have the role %q", m.Name, role)
	}
	if err := checkTime(m.NotBefore, m.NotAfter, c.Now); err != nil {
		// It may be renewed any moment, so the task waits.
		return refuse(proto.CodeBusy, "the certificate of %q: %w", m.Name, err)
	}
	return nil
}

// checkTime checks the envelope's life against the clock. A result has no time to
// be late for: the commit rule of its home decides whether it counts, and no wrong
// clock of the node that ran the task may lose it.
func (c *Checks) checkTime(h *proto.Header) error {
	if h.What == proto.WhatResult {
		return nil
	}
	now, skew := c.Now.UnixMilli(), proto.Skew.Milliseconds()
	switch {
	case h.NotAfter-h.Created > proto.MaxTTL.Milliseconds():
		return refuse(proto.CodeBadForm, "it lives longer than %d days", int(proto.MaxTTL.Hours()/24))
	case h.NotAfter <= now-skew && c.Doubted:
		return refuse(proto.CodeBusy, "it ended %s by a clock that is doubted here: later it may pass", time.UnixMilli(h.NotAfter).UTC().Format(time.RFC3339))
	case h.NotAfter <= now-skew:
		return refuse(proto.CodeExpired, "it ended %s", time.UnixMilli(h.NotAfter).UTC().Format(time.RFC3339))
	case h.NotAfter <= c.Floor:
		return refuse(proto.CodeExpired, "it ended before the floor of what is remembered here")
	case h.Created > now+skew:
		// A clock is wrong, here or there: later it may pass.
		return refuse(proto.CodeBusy, "it is from the future, %s: compare the clocks", time.UnixMilli(h.Created).UTC().Format(time.RFC3339))
	}
	return nil
}
