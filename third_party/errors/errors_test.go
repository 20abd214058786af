package errors_test

import (
	stderrors "errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/errors"
	"github.com/cockroachdb/errors/join"
	"github.com/cockroachdb/errors/oserror"
)

func TestTextsMarksAndCauses(t *testing.T) {
	mark, cause, other := errors.New("corrupt"), errors.New("cause"), stderrors.New("other")
	full := &fs.PathError{Op: "write", Path: "000001.log", Err: syscall.ENOSPC}
	tests := []struct {
		name  string
		err   error
		text  string
		is    []error
		isNot []error
	}{
		{"new", errors.New("x %d"), "x %d", nil, []error{errors.New("x %d")}},
		{"formatted", errors.Errorf("file %d: %s", errors.Safe(7), "ab"), "file 7: ab", nil, nil},
		{"formatted with a cause", errors.Newf("no: %w", cause), "no: cause", []error{cause}, []error{mark}},
		{"assertion", errors.AssertionFailedf("%d rows", 3), "3 rows", nil, nil},
		{"wrapped", errors.Wrapf(errors.Wrap(cause, "b"), "a %d", 1), "a 1: b: cause", []error{cause}, []error{mark}},
		{"wrapped without a text", errors.Wrap(cause, ""), "cause", []error{cause}, nil},
		{"marked", errors.Wrap(errors.Mark(cause, mark), "a"), "a: cause", []error{cause, mark}, []error{other}},
		{"marked with an error of the system", errors.Mark(cause, os.ErrNotExist), "cause", []error{fs.ErrNotExist}, []error{fs.ErrExist}},
		{"detail, hint, stack", errors.WithStack(errors.WithHintf(errors.WithDetailf(cause, "d %d", 1), "h")), "cause", []error{cause}, nil},
		{"combined", errors.CombineErrors(cause, other), "cause", []error{cause}, []error{other}},
		{"combined with nil", errors.CombineErrors(nil, other), "other", []error{other}, nil},
		{"joined", join.Join(errors.Mark(cause, mark), other), "cause\nother", []error{cause, mark, other}, []error{io.EOF}},
		{"from the system", errors.Wrap(errors.WithSafeDetails(full, "x"), "flush"), "flush: " + full.Error(), []error{syscall.ENOSPC}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Error(); got != tt.text || fmt.Sprintf("%v %q", tt.err, tt.err) != fmt.Sprintf("%v %q", tt.text, tt.text) {
				t.Errorf("text = %q, want %q", got, tt.text)
			}
			for _, e := range tt.is {
				if !errors.Is(tt.err, e) {
					t.Errorf("is not %v", e)
				}
			}
			for _, e := range tt.isNot {
				if errors.Is(tt.err, e) {
					t.Errorf("is %v", e)
				}
			}
		})
	}
	if stderrors.Is(errors.Mark(cause, mark), mark) {
		t.Error("the standard library finds a mark")
	}
	var path *fs.PathError
	if err := errors.Wrap(full, "a"); !errors.As(err, &path) || errors.UnwrapAll(err) != syscall.ENOSPC {
		t.Errorf("%v has cause %v", err, errors.UnwrapAll(err))
	}
}

func TestNilStaysNil(t *testing.T) {
	for i, err := range []error{
		errors.Wrap(nil, "a"), errors.Wrapf(nil, "a"), errors.WithStack(nil), errors.WithDetailf(nil, "a"), errors.WithHintf(nil, "a"), errors.UnwrapAll(nil),
		errors.WithSafeDetails(nil, "a"), errors.WithSecondaryError(nil, io.EOF), errors.Mark(nil, io.EOF), errors.CombineErrors(nil, nil), errors.Join(nil, nil),
	} {
		if err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestDetailsAreInTheLongFormat(t *testing.T) {
	err := errors.WithSecondaryError(errors.WithDetailf(errors.Wrap(io.EOF, "read"), "offset %d", 12), os.ErrClosed)
	if got, want := fmt.Sprintf("%+v", err), "read: EOF\noffset 12\nsecondary error: file already closed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if strings.Contains(fmt.Sprintf("%v", err), "offset") {
		t.Error("the short format has details")
	}
}

func TestErrorsOfTheSystem(t *testing.T) {
	tests := []struct {
		err                         error
		notExist, exist, permission bool
	}{
		{errors.Wrap(&fs.PathError{Err: syscall.ENOENT}, "a"), true, false, false},
		{errors.Wrap(os.NewSyscallError("link", syscall.EEXIST), "a"), false, true, false},
		{errors.Mark(errors.New("a"), oserror.ErrNotExist), true, false, false},
		{errors.Wrap(syscall.EACCES, "a"), false, false, true},
		{io.EOF, false, false, false},
		{nil, false, false, false},
	}
	for _, tt := range tests {
		if oserror.IsNotExist(tt.err) != tt.notExist || oserror.IsExist(tt.err) != tt.exist || oserror.IsPermission(tt.err) != tt.permission {
			t.Errorf("%v: not exist %v, exist %v, permission %v", tt.err, oserror.IsNotExist(tt.err), oserror.IsExist(tt.err), oserror.IsPermission(tt.err))
		}
	}
}
