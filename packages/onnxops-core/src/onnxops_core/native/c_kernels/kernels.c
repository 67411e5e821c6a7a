/* Kernels for one CPU core, float32. They are compiled on request (see _cpu.py) and called through a plain C
 * interface: one pointer to a struct of 8-byte members, with strides in elements. No kernel allocates, and none
 * checks what Python has checked. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Keys per tile: their scores and, at common head sizes, the keys themselves stay in the first-level cache. */
#define TILE 64
/* _cpu.py refuses heads that are larger. */
#define LARGEST_HEAD 512

/* exp(x) for x <= 0, to 2 units in the last place; written so that a compiler vectorizes loops of it. */
static inline float exponential(float x)
{
    x = x < -87.0f ? -87.0f : x;
    float n = nearbyintf(x * 1.44269504f);
    float r = fmaf(n, -1.42860677e-6f, fmaf(n, -0.693145752f, x));
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    int32_t bits = ((n == n ? (int32_t)n : 0) + 127) << 23; /* NaN has no integer; it stays in p */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* Attention of one query per head: an online softmax over tiles of keys. The `group` query heads that share a key
 * head are computed together, so that keys and values are read from memory once. */
static void attend_head(const float *q, const float *k, const float *v, float *out, int64_t group, int64_t total,
                        int64_t size, int64_t v_size, int64_t q_head, int64_t k_token, int64_t v_token, float scale,
                        float *sums, float *largest, float *weight)
{
    for (int64_t g = 0; g < group; g++) {
        largest[g] = -INFINITY;
        weight[g] = 0.0f;
    }
    memset(sums, 0, sizeof(float) * (size_t)(group * v_size));
    for (int64_t start = 0; start < total; start += TILE) {
        int64_t count = total - start < TILE ? total - start : TILE;
        for (int64_t g = 0; g < group; g++) {
            const float *query = q + g * q_head;
            float *sum = sums + g * v_size;
            float scores[TILE];
            float most = largest[g];
            int64_t t = 0;
            for (; t + 4 <= count; t += 4) {
                const float *k0 = k + (start + t) * k_token, *k1 = k0 + k_token, *k2 = k1 + k_token, *k3 = k2 + k_token;
                float p0 = 0.0f, p1 = 0.0f, p2 = 0.0f, p3 = 0.0f;
#pragma omp simd reduction(+ : p0, p1, p2, p3)
                for (int64_t d = 0; d < size; d++) {
                    p0 += query[d] * k0[d];
                    p1 += query[d] * k1[d];
                    p2 += query[d] * k2[d];
                    p3 += query[d] * k3[d];
                }
                scores[t] = p0;
                scores[t + 1] = p1;
                scores[t + 2] = p2;
                scores[t + 3] = p3;
            }
            for (; t < count; t++) {
                const float *key = k + (start + t) * k_token;
                float product = 0.0f;
#pragma omp simd reduction(+ : product)
                for (int64_t d = 0; d < size; d++)
                    product += query[d] * key[d];
                scores[t] = product;
            }
            for (t = 0; t < count; t++) {
                scores[t] *= scale;
                most = scores[t] > most ? scores[t] : most;
            }
            float shrink = start == 0 ? 0.0f : exponential(largest[g] - most);
            float added = 0.0f;
#pragma omp simd reduction(+ : added)
            for (int64_t t = 0; t < count; t++) {
                scores[t] = exponential(scores[t] - most);
                added += scores[t];
            }
            weight[g] = weight[g] * shrink + added;
            largest[g] = most;
#pragma omp simd
            for (int64_t d = 0; d < v_size; d++)
                sum[d] *= shrink;
            t = 0;
            for (; t + 4 <= count; t += 4) {
                const float *v0 = v + (start + t) * v_token, *v1 = v0 + v_token, *v2 = v1 + v_token, *v3 = v2 + v_token;
                float p0 = scores[t], p1 = scores[t + 1], p2 = scores[t + 2], p3 = scores[t + 3];
#pragma omp simd
                for (int64_t d = 0; d < v_size; d++)
                    sum[d] += p0 * v0[d] + p1 * v1[d] + p2 * v2[d] + p3 * v3[d];
            }
            for (; t < count; t++) {
                const float *value = v + (start + t) * v_token;
                float p = scores[t];
#pragma omp simd
                for (int64_t d = 0; d < v_size; d++)
                    sum[d] += p * value[d];
            }
        }
    }
    for (int64_t g = 0; g < group; g++)
        for (int64_t d = 0; d < v_size; d++)
            out[g * v_size + d] = sums[g * v_size + d] / (total ? weight[g] : 1.0f);
}

struct attention {
    const float *q, *k, *v;
    float *out;
    int64_t batch, kv_heads, group, total, size, v_size;
    int64_t q_batch, q_head, k_batch, k_head, k_token, v_batch, v_head, v_token;
    double scale;
};

void onnxops_attend_one_query(const struct attention *c)
{
    /* Query heads of a group are taken a few at a time, so that their sums fit on the stack. */
    enum { AT_ONCE = 8 };
    float sums[AT_ONCE * LARGEST_HEAD], largest[AT_ONCE], weight[AT_ONCE];
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t g = 0; g < c->group; g += AT_ONCE) {
                int64_t count = c->group - g < AT_ONCE ? c->group - g : AT_ONCE;
                int64_t head = h * c->group + g;
                attend_head(c->q + b * c->q_batch + head * c->q_head, c->k + b * c->k_batch + h * c->k_head,
                            c->v + b * c->v_batch + h * c->v_head,
                            c->out + (b * c->kv_heads * c->group + head) * c->v_size, count, c->total, c->size,
                            c->v_size, c->q_head, c->k_token, c->v_token, (float)c->scale, sums, largest, weight);
            }
}

struct rotary {
    const float *x, *cosines, *sines;
    const int64_t *positions;
    float *out;
    int64_t batch, heads, length, half, rest, interleaved;
    int64_t x_batch, x_head, x_token, out_batch, out_head, out_token;
};

/* Rotates the first 2 * half features of each head and copies the others. Without positions the caches have a row
 * per token, (batch, length, half). */
void onnxops_rotary(const struct rotary *c)
{
    int64_t half = c->half;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t t = 0; t < c->length; t++) {
                int64_t token = b * c->length + t;
                int64_t row = (c->positions ? c->positions[token] : token) * half;
                const float *restrict source = c->x + b * c->x_batch + h * c->x_head + t * c->x_token;
                const float *restrict cosine = c->cosines + row, *restrict sine = c->sines + row;
                float *restrict target = c->out + b * c->out_batch + h * c->out_head + t * c->out_token;
                if (c->interleaved) {
#pragma omp simd
                    for (int64_t d = 0; d < half; d++) {
                        float first = source[2 * d], second = source[2 * d + 1];
                        target[2 * d] = first * cosine[d] - second * sine[d];
                        target[2 * d + 1] = first * sine[d] + second * cosine[d];
                    }
                } else {
#pragma omp simd
                    for (int64_t d = 0; d < half; d++) {
                        float first = source[d], second = source[half + d];
                        target[d] = first * cosine[d] - second * sine[d];
                        target[half + d] = first * sine[d] + second * cosine[d];
                    }
                }
                memcpy(target + 2 * half, source + 2 * half, sizeof(float) * (size_t)c->rest);
            }
}

struct normalization {
    const float *x, *scale;
    float *out;
    int64_t rows, columns;
    double epsilon;
};

/* Divides each row by the root of its mean square, then scales it. */
void onnxops_rms_normalization(const struct normalization *c)
{
    int64_t columns = c->columns;
    const float *restrict scale = c->scale;
    for (int64_t row = 0; row < c->rows; row++) {
        const float *restrict source = c->x + row * columns;
        float *restrict target = c->out + row * columns;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < columns; d++)
            sum += source[d] * source[d];
        float inverse = 1.0f / sqrtf(sum / (float)columns + (float)c->epsilon);
#pragma omp simd
        for (int64_t d = 0; d < columns; d++)
            target[d] = source[d] * inverse * scale[d];
    }
}

struct cache_write {
    char *cache;
    const char *update;
    const int64_t *starts;
    /* A cache is (batch, outer, size) and an update (batch, outer, length), both of tokens of so many bytes. */
    int64_t batch, outer, size, length, token, circular;
};

/* Writes each row's update into its cache, from the token that `starts` tells (0 without). Nothing is written, and 1
 * returned, if some update does not fit. */
int64_t onnxops_write_cache(const struct cache_write *c)
{
    if (c->starts && !c->circular)
        for (int64_t b = 0; b < c->batch; b++)
            if (c->starts[b] < 0 || c->starts[b] > c->size - c->length)
                return 1;
    if (!c->length)
        return 0;
    for (int64_t b = 0; b < c->batch; b++) {
        int64_t start = c->starts ? c->starts[b] % c->size : 0;
        start += start < 0 ? c->size : 0;
        int64_t first = c->size - start < c->length ? c->size - start : c->length;
        for (int64_t row = b * c->outer; row < (b + 1) * c->outer; row++) {
            char *target = c->cache + row * c->size * c->token;
            const char *source = c->update + row * c->length * c->token;
            memmove(target + start * c->token, source, (size_t)(first * c->token));
            memmove(target, source + first * c->token, (size_t)((c->length - first) * c->token));
        }
    }
    return 0;
}
