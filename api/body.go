package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/balefire/balefire/wire"
)

const (
	// bodyTimeout bounds how long a JSON document may take to arrive. A stream has no
	// limit: when its sender dies, the socket reports it.
	bodyTimeout = 30 * time.Second
	// smallDocument is the size limit of JSON documents without a payload.
	smallDocument = 1 << 20
	// lingerTimeout bounds how long the rest of a refused body is read.
	lingerTimeout = 5 * time.Second
)

// A requestBody notes how far the body of a request was read.
type requestBody struct {
	io.ReadCloser
	begun, ended bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.begun = true
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}

// linger reads and drops what a refused client still sends, until it closes the connection
// or lingerTimeout: a client whose write fails may never see the problem (RFC 9112, section
// 9.6). net/http only waits half a second, and after Expect: 100-continue not at all.
func linger(w http.ResponseWriter, r *http.Request, b *requestBody) {
	if b.ended || !b.begun && r.Header.Get("Expect") != "" { // then the client sends nothing
		return
	}
	rc := http.NewResponseController(w)
	if errors.Join(rc.SetReadDeadline(time.Now().Add(lingerTimeout)), rc.Flush()) == nil {
		_, _ = io.Copy(io.Discard, b.ReadCloser)
	}
}

// readBody reads a document of at most limit bytes.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, &http.MaxBytesError{Limit: limit}
	}
	// The deadline is removed afterwards, or it would cancel a long request whose body has
	// been read. Only the response writers of tests have no deadlines.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	buf := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	_ = rc.SetReadDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, malformed("the body did not arrive within %s", bodyTimeout)
	case err != nil:
		return nil, err
	}
	return buf.Bytes(), nil
}

// checkDocument passes a request to a huma route only if it has no body or its body is one
// valid JSON object of limited size.
func checkDocument(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Body == nil || r.Body == http.NoBody {
			next(w, r)
			return
		}
		b, err := readBody(w, r, smallDocument)
		switch {
		case err != nil:
			writeProblem(w, err)
			return
		case len(b) > 0 && mediaType(r) != jsonType:
			writeProblem(w, problem(wire.CodeType, "content type %.80q", r.Header.Get("Content-Type")))
			return
		case len(b) > 0:
			err = checkObject(b, nil)
		}
		if err != nil {
			writeProblem(w, malformed("read the body: %v", err))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		next(w, r)
	}
}
