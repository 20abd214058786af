package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// An Entry states what happened: who did what to which task, and how it ended.
// It never contains a payload; see [Redact] and [HashArgv] for command lines.
type Entry struct {
	Time     time.Time         `json:"time"`                // default: now
	Boot     uint64            `json:"boot,omitempty"`      // start number of the node
	Actor    string            `json:"actor,omitempty"`     // peer, "uid:" and the user of this machine, "local" or "system"
	Action   string            `json:"action"`              // such as "command.start"
	Task     string            `json:"task,omitempty"`      // task id
	Attempt  int               `json:"attempt,omitempty"`   // from 1
	Epoch    string            `json:"epoch,omitempty"`     // lease epoch
	ArgvHash string            `json:"argv_hash,omitempty"` // of the whole command line
	Argv     []string          `json:"argv,omitempty"`      // redacted
	Exit     *int              `json:"exit,omitempty"`      // exit code, once there is one
	Detail   map[string]string `json:"detail,omitempty"`    // anything else, short
}

// A Record is an entry with its position in the chain.
type Record struct {
	Seq uint64 `json:"seq"` // from 1, without gaps
	Entry
	Hash Hash `json:"hash"`
}

// A Hash is a link of the chain; in text it is 64 lower-case hex digits.
type Hash [sha256.Size]byte

// String returns h as hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText returns h as hex.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads exactly what MarshalText writes.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) || bytes.ContainsAny(text, "ABCDEF") {
		return errors.New("a hash is 64 lower-case hex digits")
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// A Head is a position in the chain: the number of a line and its hash, in text SEQ:HASH.
// The zero Head is the position before the first line.
type Head struct {
	Seq  uint64
	Hash Hash
}

// String returns h as SEQ:HASH.
func (h Head) String() string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

// MarshalText returns h as SEQ:HASH.
func (h Head) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (h *Head) UnmarshalText(text []byte) error {
	seq, hash, _ := bytes.Cut(text, []byte(":"))
	n, err := strconv.ParseUint(string(seq), 10, 64)
	if err == nil {
		err = h.Hash.UnmarshalText(hash)
	}
	if err != nil {
		return fmt.Errorf("head %.90q: use SEQ:HASH, as audit verify shows it", text)
	}
	h.Seq = n
	return nil
}

const (
	lineDomain = "balefire/v1/audit\x00"
	seqPrefix  = `{"seq":`
	hashPrefix = `,"hash":"`
	hashSuffix = `"}`
	// hashTail is the number of bytes after the hashed part of a line.
	hashTail = len(hashPrefix) + 2*sha256.Size + len(hashSuffix)
	// lineOverhead is the most that a line adds to the JSON of its entry, in bytes.
	lineOverhead = len(seqPrefix) + 20 + 1 + hashTail
)

// encode returns e as a JSON object on one line.
func (e Entry) encode() ([]byte, error) {
	if e.Action == "" {
		return nil, errors.New("an entry needs an action")
	}
	e.Time = e.Time.UTC()
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	if n := len(text) + lineOverhead; n > MaxLine {
		return nil, fmt.Errorf("%w: %d bytes, at most %d: shorten its argv or detail", ErrTooLarge, n, MaxLine)
	}
	return text, nil
}

// appendLine appends the line that holds entry after prev, and returns the new
// end of the chain.
func appendLine(dst []byte, prev Head, entry []byte) ([]byte, Head) {
	start := len(dst)
	next := Head{Seq: prev.Seq + 1}
	dst = append(dst, seqPrefix...)
	dst = strconv.AppendUint(dst, next.Seq, 10)
	dst = append(dst, ',')
	dst = append(dst, entry[1:len(entry)-1]...)
	next.Hash = chainHash(lineDomain, prev.Hash, dst[start:])
	return appendSeal(dst, next.Hash), next
}

// appendSeal ends a line with its hash.
func appendSeal(dst []byte, h Hash) []byte {
	dst = append(dst, hashPrefix...)
	dst = hex.AppendEncode(dst, h[:])
	return append(dst, hashSuffix+"\n"...)
}

// chainHash hashes prev and body, which lacks its closing brace.
func chainHash(domain string, prev Hash, body []byte) Hash {
	d := sha256.New()
	d.Write([]byte(domain))
	d.Write(prev[:])
	d.Write(body)
	d.Write([]byte("}"))
	return Hash(d.Sum(nil))
}

// splitSeal splits a line, without its newline, into the hashed part and the stated hash.
func splitSeal(text []byte) (body []byte, h Hash, err error) {
	cut := len(text) - hashTail
	if cut < 0 {
		return nil, h, errors.New("the line is cut short")
	}
	body, tail := text[:cut], text[cut:]
	digits, ok := bytes.CutPrefix(tail, []byte(hashPrefix))
	if !ok || !bytes.HasSuffix(digits, []byte(hashSuffix)) {
		return nil, h, errors.New("the line does not end with its hash")
	}
	if err := h.UnmarshalText(digits[:len(digits)-len(hashSuffix)]); err != nil {
		return nil, h, err
	}
	return body, h, nil
}

// parseSeq reads the number at the start of a line.
func parseSeq(body []byte) (uint64, error) {
	rest, ok := bytes.CutPrefix(body, []byte(seqPrefix))
	digits, _, found := bytes.Cut(rest, []byte(","))
	if !ok || !found {
		return 0, errors.New("the line does not begin with its number")
	}
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	if err != nil {
		return 0, errors.New("the line's number is not one")
	}
	return seq, nil
}

// errMisplaced states damage that no interrupted write explains.
var errMisplaced = errors.New("lines are missing, added or moved")

// follow checks that text is the line after h and advances h to it. After a bad line h is
// the position that the line claims, so that one edit causes one error and not one for
// each later line.
func (h *Head) follow(text []byte) error {
	body, sum, err := splitSeal(text)
	if err != nil {
		return err
	}
	seq, err := parseSeq(body)
	if err != nil {
		return err
	}
	prev := *h
	*h = Head{Seq: seq, Hash: sum}
	switch {
	case seq != prev.Seq+1:
		return fmt.Errorf("line number %d follows %d: %w", seq, prev.Seq, errMisplaced)
	case chainHash(lineDomain, prev.Hash, body) != sum:
		return fmt.Errorf("hash of line number %d does not match: it, or the line before it, was changed", seq)
	}
	return nil
}

// parseRecord reads a line as it was appended. It does not check its hash.
func parseRecord(text []byte) (Record, error) {
	var r Record
	if _, _, err := splitSeal(text); err != nil {
		return r, err
	}
	err := json.Unmarshal(text, &r)
	return r, err
}
