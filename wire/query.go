package wire

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"strconv"
	"strings"
)

// QueryFields returns pointers to the fields of r, except its body, by their names in the
// query of a task whose body is sent as a stream: those of JSON, or of the tag stream.
func (r *Request) QueryFields() map[string]any {
	fields, v := map[string]any{}, reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if name, _, _ := strings.Cut(cmp.Or(tag.Get("stream"), tag.Get("json")), ","); name != "-" {
			fields[name] = v.Field(i).Addr().Interface()
		}
	}
	return fields
}

// Query encodes the fields of r, except its body, as the query of a stream.
func (r *Request) Query() (url.Values, error) { return encodeQuery(r.QueryFields()) }

// encodeQuery encodes fields by their names.
func encodeQuery(fields map[string]any) (url.Values, error) {
	q := url.Values{}
	for name, field := range fields {
		switch f := field.(type) {
		case *[]string:
			q[name] = *f
		case *map[string]string:
			for k, v := range *f {
				q.Add(name, k+"="+v)
			}
		case encoding.TextMarshaler:
			text, err := f.MarshalText()
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
			}
			q.Set(name, string(text))
		default:
			q.Set(name, fmt.Sprint(reflect.ValueOf(field).Elem()))
		}
		if reflect.ValueOf(field).Elem().IsZero() {
			q.Del(name)
		}
	}
	return q, nil
}

// RequestOfQuery decodes the fields of a streamed task.
func RequestOfQuery(q url.Values) (r Request, err error) {
	err = decodeQuery(r.QueryFields(), q)
	return r, err
}

// decodeQuery sets fields by their names.
func decodeQuery(fields map[string]any, q url.Values) (err error) {
	for name, vs := range q {
		switch f := fields[name].(type) {
		case nil:
			err = errors.New("unknown query parameter")
		case *[]string:
			*f = vs
		case *map[string]string:
			*f, err = labels(vs)
		default:
			err = parseField(f, vs)
		}
		if err != nil {
			return fmt.Errorf("%w: %.40s: %s", ErrInvalid, name, strings.TrimPrefix(err.Error(), ErrInvalid.Error()+": "))
		}
	}
	return nil
}

// parseField parses a query parameter that is given once.
func parseField(field any, vs []string) (err error) {
	if len(vs) != 1 {
		return errors.New("given twice")
	}
	switch f := field.(type) {
	case *string:
		*f = vs[0]
	case *uint32:
		var n uint64
		if n, err = strconv.ParseUint(vs[0], 10, 32); err != nil {
			err = fmt.Errorf("%.40q: it must be a whole number from 0 to %d", vs[0], uint32(math.MaxUint32))
		}
		*f = uint32(n)
	case *uint64:
		if *f, err = strconv.ParseUint(vs[0], 10, 64); err != nil {
			err = fmt.Errorf("%.40q: it must be a whole number from 0", vs[0])
		}
	case *int:
		if *f, err = strconv.Atoi(vs[0]); err != nil {
			err = fmt.Errorf("%.40q: it must be a whole number", vs[0])
		}
	case *bool:
		if *f, err = strconv.ParseBool(vs[0]); err != nil {
			err = fmt.Errorf("%.40q: it must be true or false", vs[0])
		}
	case *int64:
		if *f, err = strconv.ParseInt(vs[0], 10, 64); err != nil {
			err = fmt.Errorf("%.40q: it must be a whole number from 0 to %d", vs[0], math.MaxInt64)
		}
	case encoding.TextUnmarshaler:
		err = f.UnmarshalText([]byte(vs[0]))
	}
	return err
}

func labels(vs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, l := range vs {
		k, v, ok := strings.Cut(l, "=")
		if _, twice := out[k]; !ok || k == "" || twice {
			return nil, fmt.Errorf("%.60q: it must be name=value, each name once", l)
		}
		out[k] = v
	}
	return out, nil
}
