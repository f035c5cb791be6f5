# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models that scripts write themselves, in the ways of Keras' guides and examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.keras_models.registry import BATCH, Row

TITLE = "Models of scripts"
CLASSES = 5
TOKENS, LENGTH = 50, 12


# ---- batches -----------------------------------------------------------------------------------


def _images(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": random.uniform(-1, 1, (BATCH, 16, 16, 3)),
        "target": random.integers(0, CLASSES, BATCH),
    }


def _masks(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": random.uniform(-1, 1, (BATCH, 16, 16, 3)),
        "target": random.integers(0, CLASSES, (BATCH, 16, 16)),
    }


def _films(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": random.uniform(-1, 1, (BATCH, 4, 8, 8, 3)),
        "target": random.integers(0, CLASSES, BATCH),
    }


def _texts(random: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = random.integers(1, TOKENS, (BATCH, LENGTH))
    tokens[::2, LENGTH // 2 :] = 0  # some texts are shorter
    return {"x": tokens, "target": random.integers(0, CLASSES, BATCH)}


def _next_tokens(random: np.random.Generator) -> dict[str, np.ndarray]:
    tokens = random.integers(1, TOKENS, (BATCH, LENGTH + 1))
    return {"x": tokens[:, :-1], "target": tokens[:, 1:]}


def _translations(random: np.random.Generator) -> dict[str, np.ndarray]:
    written = random.integers(1, TOKENS, (BATCH, LENGTH + 1))
    return {
        "read": random.integers(1, TOKENS, (BATCH, LENGTH)),
        "written": written[:, :-1],
        "target": written[:, 1:],
    }


def _pairs(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "one": random.uniform(-1, 1, (BATCH, 16, 16, 3)),
        "other": random.uniform(-1, 1, (BATCH, 16, 16, 3)),
        "target": random.integers(0, 2, (BATCH, 1)).astype("f4"),
    }


def _tickets(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "title": random.integers(1, TOKENS, (BATCH, LENGTH)),
        "body": random.integers(1, TOKENS, (BATCH, 2 * LENGTH)),
        "tags": random.integers(0, 2, (BATCH, 6)).astype("f4"),
        "target": random.integers(0, CLASSES, BATCH),
        "target_priority": random.uniform(0, 1, (BATCH, 1)),
    }


# ---- losses ------------------------------------------------------------------------------------


def _contrastive(distance: Any, batch: Any) -> Any:
    import tensorflow as tf

    apart = tf.square(tf.maximum(1.0 - distance, 0.0))
    near = tf.square(distance)
    return tf.reduce_mean(batch["target"] * apart + (1.0 - batch["target"]) * near)


def _of_tickets(found: Any, batch: Any) -> Any:
    import tensorflow as tf

    losses = tf.keras.losses
    of_department = losses.SparseCategoricalCrossentropy(from_logits=True)
    of_priority = losses.BinaryCrossentropy(from_logits=True)
    return of_department(batch["target"], found["department"]) + 0.2 * of_priority(
        batch["target_priority"], found["priority"]
    )


def _reconstruction(found: Any, batch: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(tf.square(found - batch["x"]))


# ---- of images ---------------------------------------------------------------------------------


def _sequential_parts() -> Any:
    """A convolutional network of `tf.keras.Sequential` parts."""
    import tensorflow as tf

    layers = tf.keras.layers

    def block(filters: int) -> Any:
        return tf.keras.Sequential(
            [
                layers.Conv2D(filters, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
            ]
        )

    head = tf.keras.Sequential([layers.Flatten(), layers.Dense(CLASSES, activation="softmax")])
    return tf.keras.Sequential([block(16), block(32), head])


def _unet() -> Any:
    """As Keras' example of image segmentation: skips from the way down to the way up."""
    import tensorflow as tf

    layers = tf.keras.layers
    inputs = x = layers.Input((16, 16, 3))
    skips = []
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((16, 8), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same")(x)
        x = layers.concatenate([layers.UpSampling2D(1)(x), skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    outputs = layers.Conv2D(CLASSES, 1, activation="softmax")(x)
    return tf.keras.Model(inputs, outputs)


def _siamese() -> Any:
    """As Keras' example of contrastive learning: one encoder for two images."""
    import tensorflow as tf

    layers = tf.keras.layers
    inputs = x = layers.Input((16, 16, 3))
    for filters in (8, 16):
        x = layers.Conv2D(filters, 3, activation="tanh")(x)
        x = layers.AveragePooling2D(2)(x)
    encoder = tf.keras.Model(inputs, layers.Dense(10, activation="tanh")(layers.Flatten()(x)))

    class Siamese(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder
            self.normalize = layers.BatchNormalization()
            self.last = layers.Dense(1, activation="sigmoid")

        def call(self, inputs: Any, training: Any = None) -> Any:
            one = self.encoder(inputs["one"], training=training)
            other = self.encoder(inputs["other"], training=training)
            squares = tf.reduce_sum(tf.square(one - other), axis=1, keepdims=True)
            distance = tf.sqrt(tf.maximum(squares, 1e-7))
            return self.last(self.normalize(distance, training=training))

    return Siamese()


def _films_classifier() -> Any:
    """As Keras' example of video classification: `TimeDistributed` convolutions, then a GRU."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.TimeDistributed(layers.Conv2D(8, 3, activation="relu")),
            layers.TimeDistributed(layers.BatchNormalization()),
            layers.TimeDistributed(layers.Flatten()),
            layers.GRU(16, return_sequences=True),
            layers.GRU(8),
            layers.Dropout(0.4, seed=5),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def _conv_lstm() -> Any:
    """As Keras' example of predicting the next frame."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.ConvLSTM2D(8, 3, padding="same", return_sequences=True),
            layers.BatchNormalization(),
            layers.ConvLSTM2D(8, 3, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def _vision_transformer() -> Any:
    """As Keras' example of a vision transformer: patches cut by an operation in `call`."""
    import tensorflow as tf

    layers = tf.keras.layers

    class Patches(layers.Layer):  # type: ignore[misc] # no types
        def call(self, images: Any) -> Any:
            size = (1, 4, 4, 1)
            patches = tf.image.extract_patches(images, size, size, (1, 1, 1, 1), "VALID")
            return tf.reshape(patches, [tf.shape(images)[0], -1, patches.shape[-1]])

    class PatchEncoder(layers.Layer):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.projection = layers.Dense(32)
            self.position = layers.Embedding(16, 32)

        def call(self, patches: Any) -> Any:
            return self.projection(patches) + self.position(tf.range(16))

    class Classifier(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.patches = Patches()
            self.encoder = PatchEncoder()
            self.blocks = [
                (
                    layers.LayerNormalization(epsilon=1e-6),
                    layers.MultiHeadAttention(2, 16),
                    layers.LayerNormalization(epsilon=1e-6),
                    tf.keras.Sequential([layers.Dense(64, activation="gelu"), layers.Dense(32)]),
                )
                for _ in range(3)
            ]
            self.kept = [part for block in self.blocks for part in block]
            self.head = layers.Dense(CLASSES, activation="softmax")

        def call(self, images: Any, training: Any = None) -> Any:
            x = self.encoder(self.patches(images))
            for first, attention, second, mlp in self.blocks:
                y = first(x)
                x = x + attention(y, y, training=training)
                x = x + mlp(second(x), training=training)
            return self.head(tf.reduce_mean(x, axis=1))

    return Classifier()


def _autoencoder() -> Any:
    """As TensorFlow's tutorial: an encoder and a decoder, each a `Sequential`."""
    import tensorflow as tf

    layers = tf.keras.layers

    class Autoencoder(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.encoder = tf.keras.Sequential(
                [
                    layers.Conv2D(16, 3, activation="relu", padding="same", strides=2),
                    layers.Conv2D(8, 3, activation="relu", padding="same", strides=2),
                ]
            )
            self.decoder = tf.keras.Sequential(
                [
                    layers.Conv2DTranspose(8, 3, strides=2, activation="relu", padding="same"),
                    layers.Conv2DTranspose(16, 3, strides=2, activation="relu", padding="same"),
                    layers.Conv2D(3, 3, activation="tanh", padding="same"),
                ]
            )

        def call(self, x: Any) -> Any:
            return self.decoder(self.encoder(x))

    return Autoencoder()


def _pretrained() -> Any:
    """A trained base, frozen but for its last layers, and a new head: transfer learning."""
    import tensorflow as tf

    layers = tf.keras.layers
    base = tf.keras.applications.MobileNet(
        alpha=0.25, weights=None, include_top=False, input_shape=(32, 32, 3), pooling="avg"
    )
    for layer in base.layers[:40]:
        layer.trainable = False
    inputs = layers.Input((32, 32, 3))
    outputs = layers.Dense(CLASSES, activation="softmax")(base(inputs))
    return tf.keras.Model(inputs, outputs)


def _larger_images(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": random.uniform(-1, 1, (BATCH, 32, 32, 3)),
        "target": random.integers(0, CLASSES, BATCH),
    }


def _augmented() -> Any:
    """As Keras' guide to preprocessing layers: images are changed at random in the model."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.RandomFlip("horizontal", seed=3),
            layers.RandomRotation(0.1, seed=4),
            layers.Rescaling(0.5),
            layers.Conv2D(8, 3, activation="relu"),
            layers.SpatialDropout2D(0.2, seed=5),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.GaussianNoise(0.1, seed=6),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def _regularised() -> Any:
    """Layers that add losses: regularizers, and `add_loss` in `call`."""
    import tensorflow as tf

    layers = tf.keras.layers
    l2 = tf.keras.regularizers.L2(1e-2)

    class ActivityRegularization(layers.Layer):  # type: ignore[misc] # no types
        def call(self, x: Any) -> Any:
            self.add_loss(1e-2 * tf.reduce_mean(tf.square(x)))
            return x

    return tf.keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu", kernel_regularizer=l2),
            ActivityRegularization(),
            layers.Flatten(),
            layers.Dense(32, activation="relu", kernel_regularizer=l2),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


# ---- of texts ----------------------------------------------------------------------------------


def _transformer_block() -> Any:
    """The class of Keras' example "Text classification with Transformer"."""
    import tensorflow as tf

    layers = tf.keras.layers

    class TransformerBlock(layers.Layer):  # type: ignore[misc] # no types
        def __init__(self, width: int, heads: int, inner: int, rate: float = 0.1) -> None:
            super().__init__()
            self.att = layers.MultiHeadAttention(num_heads=heads, key_dim=width)
            self.ffn = tf.keras.Sequential(
                [layers.Dense(inner, activation="relu"), layers.Dense(width)]
            )
            self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
            self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
            self.dropout1 = layers.Dropout(rate, seed=1)
            self.dropout2 = layers.Dropout(rate, seed=2)

        def call(self, inputs: Any, training: Any = None) -> Any:
            attended = self.dropout1(self.att(inputs, inputs), training=training)
            out1 = self.layernorm1(inputs + attended)
            return self.layernorm2(out1 + self.dropout2(self.ffn(out1), training=training))

    return TransformerBlock


def _embedding_class() -> Any:
    import tensorflow as tf

    layers = tf.keras.layers

    class TokenAndPositionEmbedding(layers.Layer):  # type: ignore[misc] # no types
        def __init__(self, length: int, tokens: int, width: int) -> None:
            super().__init__()
            self.token_emb = layers.Embedding(tokens, width)
            self.pos_emb = layers.Embedding(length, width)

        def call(self, x: Any) -> Any:
            positions = self.pos_emb(tf.range(0, tf.shape(x)[-1], 1))
            return self.token_emb(x) + positions

    return TokenAndPositionEmbedding


def _transformer() -> Any:
    """Keras' example "Text classification with Transformer"."""
    import tensorflow as tf

    layers = tf.keras.layers
    block, embedding = _transformer_block(), _embedding_class()

    class Classifier(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.embedding = embedding(LENGTH, TOKENS, 32)
            self.blocks = [block(32, 2, 64) for _ in range(3)]
            self.pooling = layers.GlobalAveragePooling1D()
            self.head = layers.Dense(CLASSES, activation="softmax")

        def call(self, x: Any, training: Any = None) -> Any:
            x = self.embedding(x)
            for each in self.blocks:
                x = each(x, training=training)
            return self.head(self.pooling(x))

    return Classifier()


def _encoder_decoder() -> Any:
    """In the way of Keras' example of translation: the decoder sees all that the encoder made."""
    import tensorflow as tf

    layers = tf.keras.layers
    block, embedding = _transformer_block(), _embedding_class()

    class DecoderBlock(layers.Layer):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.attention_1 = layers.MultiHeadAttention(2, 32)
            self.attention_2 = layers.MultiHeadAttention(2, 32)
            self.dense_proj = tf.keras.Sequential(
                [layers.Dense(64, activation="relu"), layers.Dense(32)]
            )
            self.norms = [layers.LayerNormalization() for _ in range(3)]

        def call(self, x: Any, encoded: Any) -> Any:
            out = self.attention_1(query=x, value=x, key=x, use_causal_mask=True)
            x = self.norms[0](x + out)
            out = self.attention_2(query=x, value=encoded, key=encoded)
            x = self.norms[1](x + out)
            return self.norms[2](x + self.dense_proj(x))

    class Translator(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.read_embedding = embedding(LENGTH, TOKENS, 32)
            self.encoder = [block(32, 2, 64) for _ in range(2)]
            self.written_embedding = embedding(LENGTH, TOKENS, 32)
            self.decoder = [DecoderBlock() for _ in range(2)]
            self.head = layers.Dense(TOKENS, activation="softmax")

        def call(self, inputs: Any, training: Any = None) -> Any:
            encoded = self.read_embedding(inputs["read"])
            for each in self.encoder:
                encoded = each(encoded, training=training)
            x = self.written_embedding(inputs["written"])
            for each in self.decoder:
                x = each(x, encoded)
            return self.head(x)

    return Translator()


def _tied_decoder() -> Any:
    """A causal language model whose last layer is its embedding, transposed."""
    import tensorflow as tf

    layers = tf.keras.layers

    class Tied(tf.keras.Model):  # type: ignore[misc] # no types
        def __init__(self) -> None:
            super().__init__()
            self.embedding = layers.Embedding(TOKENS, 32)
            self.attentions = [layers.MultiHeadAttention(2, 16) for _ in range(3)]
            self.norms = [layers.LayerNormalization() for _ in range(3)]
            self.dense = [layers.Dense(32, activation="gelu") for _ in range(3)]

        def call(self, tokens: Any, training: Any = None) -> Any:
            x = self.embedding(tokens)
            for attention, norm, dense in zip(self.attentions, self.norms, self.dense, strict=True):
                y = norm(x)
                x = x + attention(y, y, use_causal_mask=True)
                x = x + dense(x)
            weights = tf.convert_to_tensor(self.embedding.embeddings)
            return tf.nn.softmax(tf.matmul(x, weights, transpose_b=True))

    return Tied()


def _bidirectional_lstm() -> Any:
    """Keras' example "Bidirectional LSTM on IMDB"."""
    import tensorflow as tf

    layers = tf.keras.layers
    inputs = layers.Input((None,), dtype="int32")
    x = layers.Embedding(TOKENS, 16)(inputs)
    x = layers.Bidirectional(layers.LSTM(16, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(16))(x)
    return tf.keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def _masked_gru() -> Any:
    """As Keras' guide to masking: the embedding's mask goes to the recurrent layer."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Embedding(TOKENS, 16, mask_zero=True),
            layers.GRU(16, return_sequences=True),
            layers.GRU(16),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def _tickets_model() -> Any:
    """The customers' tickets of Keras' guide to the functional API: three inputs, two outputs."""
    import tensorflow as tf

    layers = tf.keras.layers
    title = layers.Input((None,), name="title", dtype="int32")
    body = layers.Input((None,), name="body", dtype="int32")
    tags = layers.Input((6,), name="tags")
    of_title = layers.LSTM(16)(layers.Embedding(TOKENS, 16)(title))
    of_body = layers.LSTM(8)(layers.Embedding(TOKENS, 16)(body))
    x = layers.concatenate([of_title, of_body, tags])
    return tf.keras.Model(
        {"title": title, "body": body, "tags": tags},
        {
            "priority": layers.Dense(1, name="priority")(x),
            "department": layers.Dense(CLASSES, name="department")(x),
        },
    )


ROWS = (
    Row("sequential-parts", _sequential_parts, _images, remark="`Sequential` of `Sequential`s"),
    Row("unet", _unet, _masks, remark="skips between partitions"),
    Row("autoencoder", _autoencoder, _images, _reconstruction, remark="two `Sequential`s"),
    Row("siamese", _siamese, _pairs, _contrastive, remark="one encoder, called twice"),
    Row("vision-transformer", _vision_transformer, _images, remark="operations in `call`"),
    Row("augmented", _augmented, _images, remark="random layers with seeds"),
    Row("regularised", _regularised, _images, adds_losses=True, remark="`model.losses`"),
    Row(
        "transfer",
        _pretrained,
        _larger_images,
        is_made_outside=True,
        remark="made before the `DistributedModel`; partly frozen",
    ),
    Row("films", _films_classifier, _films, remark="`TimeDistributed`, GRU, dropout"),
    Row("conv-lstm", _conv_lstm, _films, remark="`ConvLSTM2D`"),
    Row("transformer", _transformer, _texts, remark="as Keras' example, dropout"),
    Row("encoder-decoder", _encoder_decoder, _translations, remark="two inputs, cross attention"),
    Row("tied-decoder", _tied_decoder, _next_tokens, remark="the embedding is the last layer too"),
    Row("bidirectional-lstm", _bidirectional_lstm, _texts, remark="as Keras' example"),
    Row("masked-gru", _masked_gru, _texts, remark="a mask crosses partitions"),
    Row(
        "tickets", _tickets_model, _tickets, _of_tickets, remark="functional; dictionaries in, out"
    ),
)
