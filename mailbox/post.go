package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A post is the handler that posts mails to a URL:
//
//	body     the mail
//	headers  Content-Type, Traceparent, and Balefire-NAME for the other variables of a program
//	answer   2xx success, whatever its body is if nothing is forwarded · 429, 5xx and others: retry · 4xx: permanent failure
//
// A URL that cannot be reached at all spends no attempt.
type post struct {
	url    string
	client *http.Client
	output bool // the body of a 2xx answer is forwarded; otherwise the status decides
}

// checkPost returns what is wrong with a URL.
func checkPost(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return invalid("post %.200q: must be a URL such as http://127.0.0.1:8080/mail", text)
	case u.User != nil:
		return invalid("post: the URL has a user or a password, which every view of the mailbox would show: let the receiver check something else")
	}
	return nil
}

func newPost(s wire.MailHandler) (handler.Handler, error) {
	if err := checkPost(s.Post); err != nil {
		return nil, err
	}
	return &post{output: s.Forward != "", url: s.Post, client: &http.Client{
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: max(s.Concurrency, 1), IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Run implements [handler.Handler].
func (p *post) Run(ctx context.Context, r *handler.Run) *handler.Result {
	res := &handler.Result{Outcome: handler.Retry, Code: -1}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, r.Body)
	if err != nil {
		return p.failed(ctx, err)
	}
	req.ContentLength = r.BodySize
	for name, value := range r.Env {
		if name = headerOf(name); value != "" {
			req.Header.Set(name, value)
		}
	}
	answer, err := p.client.Do(req)
	if err != nil {
		return p.failed(ctx, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, proto.MaxInlineBody+1)) // nearly always all of it: the connection is used again
	if err != nil && (p.output || answer.StatusCode/100 != 2) {
		return p.failed(ctx, err)
	}
	res.Code, res.Reason = answer.StatusCode, fmt.Sprintf("POST: %d %s", answer.StatusCode, http.StatusText(answer.StatusCode))
	switch n := answer.StatusCode; {
	case n/100 == 2 && !p.output:
		res.Outcome = handler.Success
	case n/100 == 2 && len(body) > proto.MaxInlineBody:
		res.Outcome, res.Reason = handler.Fail, fmt.Sprintf("POST: the answer has more than %d bytes", proto.MaxInlineBody)
	case n/100 == 2:
		res.Outcome, res.Output = handler.Success, body
	case n/100 == 4 && n != http.StatusTooManyRequests:
		res.Outcome = handler.Fail
	}
	if res.Outcome != handler.Success {
		res.Stderr = strings.ToValidUTF8(string(body[:min(len(body), proto.MaxStderr)]), "?")
	}
	return res
}

// failed returns the result of a request without an answer. Its reason, which senders on
// other nodes are told, does not have the URL: that may have a secret.
func (p *post) failed(ctx context.Context, err error) *handler.Result {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	res := &handler.Result{Outcome: handler.Retry, Code: -1, Reason: "POST: no answer", Stderr: err.Error()}
	var op *net.OpError
	switch {
	case ctx.Err() != nil:
		res.Outcome, res.Reason = handler.Stopped(context.Cause(ctx)), fmt.Sprintf("POST: %v", context.Cause(ctx))
	case errors.As(err, &op) && op.Op == "dial":
		res.Outcome, res.Reason = handler.Unready, fmt.Sprintf("POST: %v", err)
	}
	return res
}

// headerOf returns the header for a variable of a program: BALEFIRE_MAIL_ID is Balefire-Mail-Id.
func headerOf(variable string) string {
	if variable == "BALEFIRE_CONTENT_TYPE" {
		return "Content-Type"
	}
	return http.CanonicalHeaderKey(strings.ReplaceAll(variable, "_", "-"))
}
