package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/wire"
)

// A numberValue is a flag with a whole number from least to most.
type numberValue[T int | uint32 | uint64] struct {
	n           *T
	least, most T
}

// natural returns the value of a flag whose number only has to fit into 32 bits.
func natural(n *int) numberValue[int] { return numberValue[int]{n, 0, math.MaxInt32} }

func (v numberValue[T]) Set(text string) error {
	n, err := strconv.ParseUint(text, 0, 64)
	switch {
	case err == nil && n >= uint64(v.least) && n <= uint64(v.most):
		*v.n = T(n)
		return nil
	case uint64(v.most) == math.MaxUint64:
		return fmt.Errorf("it must be a whole number, %d or more", v.least)
	}
	return fmt.Errorf("it must be a whole number from %d to %d", v.least, v.most)
}

func (v numberValue[T]) String() string {
	if v.n == nil {
		return "0"
	}
	return fmt.Sprint(*v.n)
}

// Type is the name of the value in the help.
func (v numberValue[T]) Type() string { return fmt.Sprintf("%T", v.least) }

// A spanValue is a flag with a duration in the format of the configuration: 90s, 15m, 7d.
type spanValue struct{ d *time.Duration }

func (v spanValue) Set(text string) error {
	d, err := wire.ParseDuration(text)
	*v.d = time.Duration(d)
	return err
}

func (v spanValue) String() string {
	if v.d == nil || *v.d == 0 {
		return "0" // which the help does not show as a default
	}
	return wire.Duration(*v.d).String()
}

// Type is the name of the value in the help.
func (spanValue) Type() string { return "duration" }

// A limitValue is a duration that a handler keeps as text, 0 for none.
type limitValue struct{ text *string }

func (v limitValue) Set(text string) error {
	d, err := wire.ParseDuration(text)
	if *v.text = time.Duration(d).String(); d == 0 {
		*v.text = "0"
	}
	return err
}

func (v limitValue) String() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// Type is the name of the value in the help.
func (limitValue) Type() string { return "duration" }

// An envValue is a repeatable flag with NAMEs of environment variables, comma-separated, or with one
// NAME=VALUE, whatever is in VALUE. Empty, it adds none.
type envValue struct{ all *[]string }

func (v envValue) Set(text string) error {
	switch {
	case text == "":
	case strings.Contains(text, "="):
		*v.all = append(*v.all, text)
	default:
		*v.all = append(*v.all, strings.Split(text, ",")...)
	}
	return nil
}

// String is the default in the help: none.
func (envValue) String() string { return "" }

// Type is the name of the value in the help.
func (envValue) Type() string { return "names" }

// A sizeValue is a flag with a number of bytes in the format of the configuration: 64MiB,
// 1.5GB.
type sizeValue struct{ n *int64 }

func (v sizeValue) Set(text string) error {
	n, err := settings.ParseBytes(text)
	*v.n = int64(n)
	return err
}

func (v sizeValue) String() string {
	if v.n == nil || *v.n == 0 {
		return "0"
	}
	return strconv.FormatInt(*v.n, 10)
}

// Type is the name of the value in the help.
func (sizeValue) Type() string { return "size" }
